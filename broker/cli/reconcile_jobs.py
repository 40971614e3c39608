"""The jobs beside the audit as commands: what falls due, lateness, plan, proof, repair, watch."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.exits import Exit
from broker.cli.output import console, print_json, print_json_line, table
from broker.cli.reconcile_spark import could_not_run, in_spark
from message_store.clock import SystemClock
from message_store.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from reconciliation.running import Wanted
    from reconciliation.where import Where

Rows = list[dict[str, Any]]
ROWS_MAX: Final = 100_000
SHOWN_MAX: Final = 60
REPAIR_MAX: Final = 1_000_000
FORMAT: Final = "duemq-repair-1"


def forecast(wanted: Wanted, where: Where, *, minutes: int, as_json: bool) -> None:
    """Print what falls due, and how a broker gets through it."""
    from reconciliation import jobs

    def work(spark: SparkSession) -> dict[str, Rows]:
        load = jobs.forecast(_verdicts(spark, wanted), bucket_ms=minutes * jobs.MINUTE_MS).persist()
        pieces = jobs.capacity(load, rate_per_s=wanted.capacity_per_s or None)
        return {"pieces": _rows(pieces), "days": _rows(jobs.by_day(load))}

    found = _ran(wanted, where, "forecast", work, as_json=as_json)
    if as_json:
        print_json(found)
        return
    _table("What falls due", found["pieces"])
    _table("By day (UTC)", found["days"])


def lateness(wanted: Wanted, where: Where, *, minutes: int, as_json: bool) -> None:
    """Print how late deliveries were, and whether that grows."""
    from reconciliation import jobs

    def work(spark: SparkSession) -> dict[str, Rows]:
        verdicts = _verdicts(spark, wanted).persist()
        history = jobs.lateness(verdicts, bucket_ms=minutes * jobs.MINUTE_MS).persist()
        return {
            "history": _rows(history),
            "trend": _rows(jobs.trend(history)),
            "worst": _rows(jobs.worst(verdicts)),
        }

    found = _ran(wanted, where, "lateness", work, as_json=as_json)
    if as_json:
        print_json(found)
        return
    for title, name in (("History", "history"), ("Trend", "trend"), ("The latest", "worst")):
        _table(title, found[name])


def proof(wanted: Wanted, where: Where, migration_id: str, *, out: str, as_json: bool) -> None:
    """Print whether each message of a migration came once, at its promised time; exit 1 if not."""
    from reconciliation.migrations import migration_proof, proof_totals
    from reconciliation.read import read_table

    columns = ("store", "phys_offset", "topic", "queue_offset", "level", "due_ms", "body")

    def work(spark: SparkSession) -> dict[str, Rows]:
        messages = read_table(spark, wanted.stores, "messages", columns)
        schedule = read_table(spark, wanted.stores, "schedule")
        found = migration_proof(_verdicts(spark, wanted), messages, schedule, migration_id)
        found = found.persist()
        if out:
            found.write.parquet(out)
        open_ones = found.where("not proven").orderBy("store", "phys_offset").limit(SHOWN_MAX)
        return {"totals": _rows(proof_totals(found)), "not_proven": _rows(open_ones)}

    found = _ran(wanted, where, "proof", work, as_json=as_json)
    if as_json:
        print_json(found)
    else:
        _table("Proof of migrations", found["totals"])
        if found["not_proven"]:
            _table("Not proven", found["not_proven"])
        console().print(_proof_text(found, migration_id), markup=False)
    if found["not_proven"] or not found["totals"]:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _proof_text(found: dict[str, Rows], migration_id: str) -> str:
    if not found["totals"]:
        what = f"migration {migration_id}" if migration_id else "a migration"
        return f"The log tells of no message of {what}."
    left = sum(row["not_proven"] for row in found["totals"])
    count = sum(row["messages"] for row in found["totals"])
    if left:
        return f"{left:,} of {count:,} messages are not proven."
    return f"Each of {count:,} messages came exactly once at its promised time, or waits for it."


def plan(wanted: Wanted, where: Where, *, as_json: bool) -> None:
    """Print what a migration would move, counted from the files."""
    from reconciliation.jobs import PLAN_COLUMNS, backfill_plan
    from reconciliation.read import read_table

    as_of_ms = wanted.as_of_ms or SystemClock().now_ms()

    def work(spark: SparkSession) -> Rows:
        return _rows(
            backfill_plan(
                read_table(spark, wanted.stores, "schedule"),
                read_table(spark, wanted.stores, "cursors"),
                read_table(spark, wanted.stores, "messages", PLAN_COLUMNS),
                as_of_ms=as_of_ms,
            )
        )

    found = _ran(wanted, where, "plan", work, as_json=as_json)
    if as_json:
        print_json({"as_of_ms": as_of_ms, "levels": found})
        return
    _table("What a migration would move", found)
    count, size = sum(r["pending"] for r in found), sum(r["unit_bytes"] for r in found)
    console().print(f"{count:,} messages wait; their timer units take {size:,} bytes.")


def repair(wanted: Wanted, where: Where, file: Path, *, as_json: bool) -> None:
    """Write what was lost or quarantined into a file for `duemq send --from`."""
    from reconciliation.jobs import repair as lost
    from reconciliation.read import read_table

    if file.exists():
        raise UsageError(f"{file} is there already: name another file")

    def work(spark: SparkSession) -> int:
        names = ("store", "phys_offset", "property_text", "body")
        messages = read_table(spark, wanted.stores, "messages", names)
        rows = lost(_verdicts(spark, wanted), messages).limit(REPAIR_MAX).toLocalIterator()
        with file.open("w", encoding="utf-8") as to:
            to.write(json.dumps({"format": FORMAT, "stores": wanted.stores}) + "\n")
            return sum(bool(to.write(json.dumps(_line(row)) + "\n")) for row in rows)

    count = _ran(wanted, where, "repair", work, as_json=as_json)
    if as_json:
        print_json({"file": str(file), "messages": count})
        return
    text = (
        f"{count:,} messages are in {file}; nothing was sent. See what `duemq send --from {file}`"
    )
    console().print(f"{text} would do, then add --yes.", markup=False, soft_wrap=True)


def _line(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = row.asDict()
    for name in ("body", "property_text"):
        found[name] = base64.b64encode(bytes(found[name] or b"")).decode()
    return found


def watch(
    wanted: Wanted, where: Where, home: Path, *, delay_ms: int, every_s: int, once: bool
) -> None:
    """Audit the log as it grows; print a line of JSON for each violation until Ctrl-C."""
    from reconciliation.running import check_stores
    from reconciliation.watching import Watch, WatchConfig
    from reconciliation.where import session_at

    def told(alarms: list[dict[str, Any]]) -> None:
        for alarm in alarms:
            print_json_line(alarm)

    with could_not_run():
        check_stores(wanted.stores)
        spark = session_at(where)
        try:
            config = WatchConfig(audit=wanted.config, delay_ms=delay_ms)
            watching = Watch(spark, home, config, SystemClock(), told)
            query = watching.start(
                wanted.stores, every_ms=0 if once else every_s * 1_000,
                tickMs=0 if once else every_s * 1_000,
            )  # fmt: skip
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
        finally:
            spark.stop()


def _verdicts(spark: SparkSession, wanted: Wanted) -> DataFrame:
    from reconciliation.read import audit_stores

    return audit_stores(spark, wanted.stores, wanted.config)[0]


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict() for row in frame.limit(ROWS_MAX).collect()]


def _ran(
    wanted: Wanted, where: Where, what: str, work: Callable[[SparkSession], Any], *, as_json: bool
) -> Any:
    from reconciliation.running import check_stores

    with could_not_run():
        check_stores(wanted.stores)
        return in_spark(where, what, work, shown=not as_json)


def _table(title: str, rows: Rows) -> None:
    from reconciliation.report import shown_cell

    names: Sequence[str] = list(rows[0]) if rows else ["nothing"]
    columns = [_header(name, rows) for name in names]
    cells = [[shown_cell(name, row[name]) for name in names] for row in rows[:SHOWN_MAX]]
    console().print(table(title, columns, cells))
    if len(rows) > SHOWN_MAX:
        console().print(f"{len(rows) - SHOWN_MAX:,} more: --json prints all")


def _header(name: str, rows: Rows) -> str:
    numbers = any(isinstance(row.get(name), int | float) for row in rows)
    return f"#{name}" if numbers else name
