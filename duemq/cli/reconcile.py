"""`duemq reconcile`: the outcome of every scheduled message of a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import (
    AsJson,
    AsOf,
    Late,
    LedgerUrl,
    LevelDelays,
    OutsideOptions,
    SparkOptions,
    Stores,
    StreamOptions,
    TrustClock,
)
from duemq_common.errors import UsageError

if TYPE_CHECKING:
    from spark_reconciliation.jobs.outside import TableComparison
    from spark_reconciliation.jobs.run import AuditRequest
    from spark_reconciliation.spark.master import SparkMaster

reconcile_app = group()
URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
Capacity = Annotated[
    int,
    typer.Option(
        metavar="N", help="Messages per second that a broker delivers; 0: unlimited.", min=0
    ),
]
Minutes = Annotated[int, typer.Option(help="Length of an interval in minutes.", min=1)]


@command(reconcile_app, "run", example="reconcile run /data/store --report audit.html")
def run(
    stores: Stores,
    late: Late = 2_000,
    as_of: AsOf = "",
    levels: LevelDelays = "",
    trust_clock: TrustClock = False,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Directory for the verdicts, as Parquet.")
    ] = "",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for an HTML report.")
    ] = None,
    capacity: Capacity = 0,
    ledger: LedgerUrl = "",
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of saved state: later audits read what is new, with the same result.",
        ),
    ] = None,
    *,
    outside: OutsideOptions,
    spark: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Audit stores. Exit code 0: no findings; 1: findings; 2: the audit could not run."""
    from duemq.cli.reconcile_run import reconcile

    request = _request(
        stores,
        late,
        as_of,
        levels,
        trust_clock=trust_clock,
        out=out,
        report=report,
        capacity_per_s=capacity,
        comparison=_comparison(outside),
        state=state and _on_disk(state, "--state"),
    )
    reconcile(request, _spark_master(spark), ledger, as_json=as_json)


@command(reconcile_app, "history", example="reconcile history /data/store")
def history(
    store: Annotated[str, typer.Argument(help="The store's directory.")] = "",
    ledger: Annotated[
        str, typer.Option(metavar="URL", help="URL of the ledger, instead of STORE.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show past audits from the ledger, newest first."""
    from duemq.cli import reconcile_run

    reconcile_run.history(store, ledger, as_json=as_json)


@command(reconcile_app, "forecast", example="reconcile forecast /data/store --minutes 60")
def forecast(
    stores: Stores,
    minutes: Minutes = 1,
    capacity: Capacity = 0,
    levels: LevelDelays = "",
    *,
    spark: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Show due messages by time, and the backlog of a broker with the given capacity."""
    from duemq.cli import reconcile_jobs

    request = _request(stores, levels=levels, capacity_per_s=capacity)
    master = _spark_master(spark)
    reconcile_jobs.forecast(request, master, minutes=minutes, as_json=as_json)


@command(reconcile_app, "lateness", example="reconcile lateness /data/store")
def lateness(
    stores: Stores,
    minutes: Minutes = 60,
    levels: LevelDelays = "",
    *,
    spark: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Show the lateness of deliveries by level and topic, its trend, and the worst cases."""
    from duemq.cli import reconcile_jobs

    master = _spark_master(spark)
    reconcile_jobs.lateness(
        _request(stores, levels=levels), master, minutes=minutes, as_json=as_json
    )


@command(reconcile_app, "proof", example="reconcile proof /data/store")
def proof(
    stores: Stores,
    migration: Annotated[
        str, typer.Option(metavar="ID", help="Only this migration; default: all.")
    ] = (""),
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Directory for one row per message, as Parquet.")
    ] = "",
    late: Late = 2_000,
    levels: LevelDelays = "",
    trust_clock: TrustClock = False,
    *,
    spark: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Prove that a migration delivered each message once and on time. Exit code 1: not proven."""
    from duemq.cli import reconcile_jobs

    master = _spark_master(spark)
    request = _request(stores, late, levels=levels, trust_clock=trust_clock)
    reconcile_jobs.proof(request, master, migration, out=out, as_json=as_json)


@command(reconcile_app, "plan", example="reconcile plan /data/store")
def plan(
    stores: Stores,
    as_of: Annotated[
        str,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Time from which due messages count as overdue; default: now.",
        ),
    ] = "",
    *,
    spark: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Count the messages that `duemq migrate start` would move, in stores of any size."""
    from duemq.cli import reconcile_jobs

    master = _spark_master(spark)
    reconcile_jobs.plan(_request(stores, as_of=as_of), master, as_json=as_json)


@command(reconcile_app, "replicas", example="reconcile replicas /data/store-1 /data/store-2")
def replicas(stores: Stores, *, spark: SparkOptions, as_json: AsJson = False) -> None:
    """Compare the stores of a broker group, record by record. Exit code 1: they differ."""
    from duemq.cli import reconcile_jobs

    reconcile_jobs.replicas(_request(stores), _spark_master(spark), as_json=as_json)


@command(reconcile_app, "repair", example="reconcile repair /data/store --to lost.jsonl")
def repair(
    stores: Stores,
    file: Annotated[Path, typer.Option("--to", metavar="FILE", help="New file to write.")],
    late: Late = 2_000,
    as_of: AsOf = "",
    levels: LevelDelays = "",
    *,
    spark: SparkOptions,
    as_json: AsJson = False,
) -> None:
    """Write lost and quarantined messages into a file for `duemq send --from`. Sends nothing."""
    from duemq.cli import reconcile_jobs

    master = _spark_master(spark)
    reconcile_jobs.repair(_request(stores, late, as_of, levels), master, file, as_json=as_json)


@command(reconcile_app, "export", example="reconcile export /data/store --to /data/tables")
def export(
    stores: Stores,
    out: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Directory of the tables and their state.")
    ],
    broker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name of the broker of each store, in order; default: the directory's name.",
        ),
    ] = None,
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap",
            help="Continue although retention removed records before their export.",
        ),
    ] = False,
    as_delta: Annotated[
        bool, typer.Option("--delta", help="Add a Delta log to each table; later runs continue it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add the new records of stores to Parquet tables. Needs no Spark and no Java."""
    from duemq.cli import reconcile_export

    reconcile_export.export(
        stores,
        _on_disk(out, "--to"),
        broker or [],
        accept_gap=accept_gap,
        as_delta=as_delta,
        as_json=as_json,
    )


@command(reconcile_app, "watch", example="reconcile watch /data/store --home /var/lib/duemq-watch")
def watch(
    stores: Stores,
    home: Annotated[
        Path,
        typer.Option(
            "--home", metavar="DIR", help="State directory, from which a restart continues."
        ),
    ],
    late: Late = 2_000,
    levels: LevelDelays = "",
    delay: Annotated[
        int, typer.Option(metavar="MS", help="Time from a violation to its alarm.", min=0)
    ] = 5_000,
    every: Annotated[
        int, typer.Option(metavar="S", help="Seconds between two rounds.", min=1)
    ] = 10,
    once: Annotated[
        bool, typer.Option("--once", help="Audit the new records once, then exit.")
    ] = False,
    *,
    spark: StreamOptions,
) -> None:
    """Audit the growing log; print each violation once as a JSON line, also across restarts."""
    from duemq.cli import reconcile_jobs

    request, master = _request(stores, late, levels=levels), _spark_master(spark)
    reconcile_jobs.watch(
        request, master, _on_disk(home, "--home"), delay_ms=delay, every_s=every, once=once
    )


def _request(
    stores: list[str], late: int = 2_000, as_of: str = "", levels: str = "", **more: Any
) -> AuditRequest:
    from duemq.cli.reconcile_run import as_of_ms, user
    from spark_reconciliation.jobs.run import AuditRequest, absolute
    from spark_reconciliation.scan.levels import levels_ms_of

    return AuditRequest(
        stores=tuple(map(absolute, stores)),
        late_ms=late,
        as_of_ms=as_of_ms(as_of),
        levels_ms=levels_ms_of(levels),
        made_by=user(),
        **more,
    )


def _on_disk(path: Path, option: str) -> Path:
    """Return the path of an option.

    Raises:
        UsageError: It is a URL, of whose slashes a path has one.
    """
    if URL.match(str(path)):
        text = "must be a directory on a disk of this machine, or one that is mounted"
        raise UsageError(f"{option} {str(path).replace(':/', '://', 1)}: {text}")
    return path


def _comparison(options: OutsideOptions) -> TableComparison | None:
    for name, columns, location in (
        ("sent", options.sent_columns, options.sent),
        ("received", options.received_columns, options.received),
    ):
        if columns and not location:
            raise UsageError(f"--{name}-columns needs a table: give --{name} TABLE")
    if not options.sent and not options.received:
        if options.zone:
            raise UsageError("--zone needs a table: give --sent TABLE or --received TABLE")
        return None
    from spark_reconciliation.jobs.outside import TableComparison
    from spark_reconciliation.jobs.run import absolute
    from spark_reconciliation.spark.database import JDBC
    from spark_reconciliation.spark.outside_tables import OutsideTable

    def table(location: str, columns: str, password: str) -> OutsideTable | None:
        if not location:
            return None
        path = location if location.startswith(JDBC) else absolute(location)
        return OutsideTable.parse(path, columns, options.zone, os.environ.get(password, ""))

    return TableComparison(
        sent=table(options.sent, options.sent_columns, "DUEMQ_SENT_PASSWORD"),
        received=table(options.received, options.received_columns, "DUEMQ_RECEIVED_PASSWORD"),
        tolerance_ms=options.tolerance,
    )


def _spark_master(spark: SparkOptions | StreamOptions) -> SparkMaster:
    from spark_reconciliation.local.choice import SPARK_ENGINE
    from spark_reconciliation.spark.master import SparkMaster, parse_settings
    from spark_reconciliation.spark.requirements import require_packages

    require_packages()
    return SparkMaster(
        engine=spark.engine if isinstance(spark, SparkOptions) else SPARK_ENGINE,
        cores=spark.cores,
        memory=spark.memory,
        connect=spark.connect,
        log_level=spark.spark_log,
        settings=parse_settings(spark.conf or ()),
    )
