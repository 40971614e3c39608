"""`duemq reconcile`: the outcome of every scheduled message of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.cli.options import AsJson
from duemq.cli.reconcile_spark import (
    AsOf,
    Connect,
    Cores,
    Late,
    LedgerUrl,
    Levels,
    Memory,
    SparkLog,
    Stores,
    TrustClock,
)

if TYPE_CHECKING:
    from reconciliation.jobs.run import Wanted
    from reconciliation.spark.master import Where

reconcile_app = typer.Typer(no_args_is_help=True, help="Prove what became of every message.")
Capacity = Annotated[
    int, typer.Option(metavar="N", help="Messages a second a broker delivers; 0: as needed.", min=0)
]
Minutes = Annotated[int, typer.Option(help="Length of a piece of time.", min=1)]


@reconcile_app.command("run")
def run(
    stores: Stores,
    late: Late = 2_000,
    as_of: AsOf = "",
    levels: Levels = "",
    trust_clock: TrustClock = False,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Write the verdicts there, as Parquet.")
    ] = "",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report there, as HTML.")
    ] = None,
    capacity: Capacity = 0,
    ledger: LedgerUrl = "",
    cores: Cores = 0,
    memory: Memory = "2g",
    connect: Connect = "",
    spark_log: SparkLog = "",
    as_json: AsJson = False,
) -> None:
    """Audit stores. Exit 0: every promise kept; 1: there are findings; 2: it could not run."""
    from duemq.cli.reconcile_run import reconcile

    wanted = _wanted(
        stores, late, as_of, levels, trust_clock=trust_clock, out=out, report=report,
        capacity_per_s=capacity,
    )  # fmt: skip
    reconcile(wanted, _where(cores, memory, connect, spark_log), ledger, as_json=as_json)


@reconcile_app.command("history")
def history(
    store: Annotated[str, typer.Argument(help="The store's directory.")] = "",
    ledger: Annotated[str, typer.Option(metavar="URL", help="Of another ledger.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the audits that a ledger tells of, the newest first."""
    from duemq.cli import reconcile_run

    reconcile_run.history(store, ledger, as_json=as_json)


@reconcile_app.command("forecast")
def forecast(
    stores: Stores,
    minutes: Minutes = 1,
    capacity: Capacity = 0,
    levels: Levels = "",
    cores: Cores = 0,
    memory: Memory = "2g",
    connect: Connect = "",
    spark_log: SparkLog = "",
    as_json: AsJson = False,
) -> None:
    """Show what falls due when, and how far behind a broker would be."""
    from duemq.cli import reconcile_jobs

    wanted = _wanted(stores, levels=levels, capacity_per_s=capacity)
    where = _where(cores, memory, connect, spark_log)
    reconcile_jobs.forecast(wanted, where, minutes=minutes, as_json=as_json)


@reconcile_app.command("lateness")
def lateness(
    stores: Stores,
    minutes: Minutes = 60,
    levels: Levels = "",
    cores: Cores = 0,
    memory: Memory = "2g",
    connect: Connect = "",
    spark_log: SparkLog = "",
    as_json: AsJson = False,
) -> None:
    """Show how late deliveries were by level and topic, whether that grows, and the latest."""
    from duemq.cli import reconcile_jobs

    where = _where(cores, memory, connect, spark_log)
    reconcile_jobs.lateness(_wanted(stores, levels=levels), where, minutes=minutes, as_json=as_json)


@reconcile_app.command("proof")
def proof(
    stores: Stores,
    migration: Annotated[str, typer.Option(metavar="ID", help="One migration; all by default.")] = (
        ""
    ),
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Write a row for each message there, as Parquet.")
    ] = "",
    late: Late = 2_000,
    levels: Levels = "",
    trust_clock: TrustClock = False,
    cores: Cores = 0,
    memory: Memory = "2g",
    connect: Connect = "",
    spark_log: SparkLog = "",
    as_json: AsJson = False,
) -> None:
    """Prove a migration: each message once, at its promised time. Exit 1: not proven."""
    from duemq.cli import reconcile_jobs

    where = _where(cores, memory, connect, spark_log)
    wanted = _wanted(stores, late, levels=levels, trust_clock=trust_clock)
    reconcile_jobs.proof(wanted, where, migration, out=out, as_json=as_json)


@reconcile_app.command("plan")
def plan(
    stores: Stores,
    as_of: Annotated[
        str, typer.Option("--as-of", metavar="TIME", help="Due by then is overdue; default: now.")
    ] = "",
    cores: Cores = 0,
    memory: Memory = "2g",
    connect: Connect = "",
    spark_log: SparkLog = "",
    as_json: AsJson = False,
) -> None:
    """Count what `duemq migrate start` would move, on stores too large for one machine."""
    from duemq.cli import reconcile_jobs

    where = _where(cores, memory, connect, spark_log)
    reconcile_jobs.plan(_wanted(stores, as_of=as_of), where, as_json=as_json)


@reconcile_app.command("repair")
def repair(
    stores: Stores,
    file: Annotated[Path, typer.Option("--to", metavar="FILE", help="A new file.")],
    late: Late = 2_000,
    as_of: AsOf = "",
    levels: Levels = "",
    cores: Cores = 0,
    memory: Memory = "2g",
    connect: Connect = "",
    spark_log: SparkLog = "",
    as_json: AsJson = False,
) -> None:
    """Write lost and quarantined messages into a file for `duemq send --from`. Sends nothing."""
    from duemq.cli import reconcile_jobs

    where = _where(cores, memory, connect, spark_log)
    reconcile_jobs.repair(_wanted(stores, late, as_of, levels), where, file, as_json=as_json)


@reconcile_app.command("watch")
def watch(
    stores: Stores,
    home: Annotated[
        Path, typer.Option("--home", metavar="DIR", help="Its own folder: goes on where it was.")
    ],
    late: Late = 2_000,
    levels: Levels = "",
    delay: Annotated[
        int, typer.Option(metavar="MS", help="An alarm comes so long after the violation.", min=0)
    ] = 5_000,
    every: Annotated[int, typer.Option(metavar="S", help="Seconds between two looks.", min=1)] = 10,
    once: Annotated[bool, typer.Option("--once", help="Look at what is new, and end.")] = False,
    cores: Cores = 1,
    memory: Memory = "1g",
    spark_log: SparkLog = "",
) -> None:
    """Audit the log as it grows: a line of JSON for each violation, once, across restarts too."""
    from duemq.cli import reconcile_jobs

    wanted, where = _wanted(stores, late, levels=levels), _where(cores, memory, "", spark_log)
    reconcile_jobs.watch(wanted, where, home, delay_ms=delay, every_s=every, once=once)


def _wanted(
    stores: list[str], late: int = 2_000, as_of: str = "", levels: str = "", **more: Any
) -> Wanted:
    from duemq.cli.reconcile_run import as_of_ms, user
    from reconciliation.jobs.run import Wanted
    from reconciliation.scan.levels import levels_ms_of

    return Wanted(
        stores=tuple(stores), late_ms=late, as_of_ms=as_of_ms(as_of),
        levels_ms=levels_ms_of(levels), made_by=user(), **more,
    )  # fmt: skip


def _where(cores: int, memory: str, connect: str, spark_log: str) -> Where:
    from reconciliation.spark.master import Where
    from reconciliation.spark.requirements import require_packages

    require_packages()
    return Where(cores=cores, memory=memory, connect=connect, log_level=spark_log)
