"""`duemq reconcile forecast`, `lateness`, `plan`, `proof`, `replicas`, `repair` and `watch`."""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duemq.cli.exits import Exit
from duemq.cli.message_file import REPAIR_FORMAT
from duemq.cli.output import console, notice, plural, print_json, print_json_line, print_table
from duemq.cli.reconcile_run import print_unread
from duemq.cli.reconcile_spark import LOOK_S, could_not_run, in_spark, with_engine
from duemq_common.clock import SystemClock
from duemq_common.disk_errors import naming
from duemq_common.errors import UsageError
from duemq_common.existence import exists, is_directory
from duemq_common.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_reconciliation.jobs.run import AuditRequest
    from spark_reconciliation.spark.master import SparkMaster

Rows = list[dict[str, Any]]
Found = dict[str, Rows]
"""Tables by name; `unread` lists the unreadable positions."""
ROWS_MAX: Final = 100_000
REPORT_EVERY_S: Final = 10.0
SHOWN_MAX: Final = 60
REPAIR_MAX: Final = 1_000_000


def forecast(request: AuditRequest, master: SparkMaster, *, minutes: int, as_json: bool) -> None:
    """Print due messages by time, and the backlog of a broker with the given capacity."""
    from spark_reconciliation.jobs import jobs

    def work(spark: SparkSession) -> Found:
        verdicts, unread = _audited(spark, request)
        load = jobs.forecast(verdicts, bucket_ms=minutes * jobs.MINUTE_MS).persist()
        pieces = jobs.capacity(load, rate_per_s=request.capacity_per_s or None)
        return {"pieces": _rows(pieces), "days": _rows(jobs.by_day(load)), "unread": unread}

    result = _run_job(request, master, "forecast", work, as_json=as_json)
    titles = {"pieces": "What falls due", "days": "By day (UTC)"}
    _print(result, titles, nothing="No message is pending.", as_json=as_json)


def lateness(request: AuditRequest, master: SparkMaster, *, minutes: int, as_json: bool) -> None:
    """Print the lateness of deliveries, its trend and the worst cases."""
    from spark_reconciliation.jobs import jobs

    def work(spark: SparkSession) -> Found:
        verdicts, unread = _audited(spark, request)
        verdicts = verdicts.persist()
        history = jobs.lateness(verdicts, bucket_ms=minutes * jobs.MINUTE_MS).persist()
        return {
            "history": _rows(history),
            "trend": _rows(jobs.trend(history)),
            "worst": _rows(jobs.worst(verdicts)),
            "unread": unread,
        }

    result = _run_job(request, master, "lateness", work, as_json=as_json)
    titles = {"history": "History", "trend": "Trend", "worst": "The latest"}
    _print(result, titles, nothing="Nothing was delivered.", as_json=as_json)


def proof(
    request: AuditRequest, master: SparkMaster, migration_id: str, *, out: str, as_json: bool
) -> None:
    """Print whether each migrated message was delivered once and on time; exit 1 if not."""
    from spark_reconciliation.audit.migration_proof import migration_proof, proof_totals
    from spark_reconciliation.spark.read import read_table

    columns = ("store", "phys_offset", "topic", "queue_offset", "level", "due_ms", "body")

    def work(spark: SparkSession) -> Found:
        messages = read_table(spark, request.stores, "messages", columns)
        schedule = read_table(spark, request.stores, "schedule")
        verdicts, unread = _audited(spark, request)
        result = migration_proof(verdicts, messages, schedule, migration_id).persist()
        if out:
            result.write.parquet(out)
        open_ones = result.where("not proven").orderBy("store", "phys_offset").limit(SHOWN_MAX)
        totals = _rows(proof_totals(result))
        return {"totals": totals, "not_proven": _rows(open_ones), "unread": unread}

    result = _run_job(request, master, "proof", work, as_json=as_json)
    titles = {"totals": "Proof of migrations", "not_proven": "Not proven"}
    _print(result, titles, last=lambda: _proof_text(result, migration_id), as_json=as_json)
    if result["not_proven"] or not result["totals"]:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _proof_text(result: Found, migration_id: str) -> str:
    if not result["totals"]:
        subject = f"migration {migration_id}" if migration_id else "a migration"
        return f"The log contains no message of {subject}."
    left = sum(row["not_proven"] for row in result["totals"])
    count = sum(row["messages"] for row in result["totals"])
    if left:
        return f"{left:,} of {count:,} messages are not proven."
    return f"Each of {count:,} messages was delivered exactly once and on time, or is pending."


def plan(request: AuditRequest, master: SparkMaster, *, as_json: bool) -> None:
    """Print what a migration would move, counted from the store files."""
    from spark_reconciliation.jobs.jobs import PLAN_COLUMNS, backfill_plan
    from spark_reconciliation.scan.roles import Role
    from spark_reconciliation.spark.read import read_table

    as_of_ms = SystemClock().now_ms() if request.as_of_ms is None else request.as_of_ms

    def work(spark: SparkSession) -> Found:
        levels = backfill_plan(
            read_table(spark, request.stores, "schedule"),
            read_table(spark, request.stores, "cursors"),
            read_table(spark, request.stores, "messages", PLAN_COLUMNS),
            as_of_ms=as_of_ms,
        )
        places = ("store", "phys_offset", "damage")
        gaps = read_table(spark, request.stores, "messages", places, roles=Role.GAP)
        queues = read_table(spark, request.stores, "consume_queue", places, topics=SCHEDULE_TOPIC)
        unread = gaps.unionByName(queues.where("damage is not null"))
        return {"levels": _rows(levels), "unread": _rows(unread.orderBy(*places))}

    result = _run_job(request, master, "plan", work, as_json=as_json)
    count, size = (sum(row[name] for row in result["levels"]) for name in ("pending", "unit_bytes"))
    text = f"{count:,} {plural(count, 'message')} pending; timer units take {size:,} bytes."
    titles = {"levels": "What a migration would move"}
    _print(result, titles, last=lambda: text, as_json=as_json, as_of_ms=as_of_ms)


def replicas(request: AuditRequest, master: SparkMaster, *, as_json: bool) -> None:
    """Compare the records of a group's stores; exit 1 if they differ."""
    from spark_reconciliation.jobs.replicas import COLUMNS, differences, extents
    from spark_reconciliation.scan.roles import Role
    from spark_reconciliation.spark.read import read_table

    if len(request.stores) < 2:
        raise UsageError("a single store cannot be compared: give all stores of the group")

    def work(spark: SparkSession) -> Found:
        stores = read_table(spark, request.stores, "stores").persist()
        result = differences(read_table(spark, request.stores, "messages", COLUMNS), stores)
        places = ("store", "phys_offset", "damage")
        gaps = read_table(spark, request.stores, "messages", places, roles=Role.GAP)
        return {
            "stores": _rows(extents(stores)),
            "differences": _rows(result.limit(SHOWN_MAX)),
            "unread": _rows(gaps.orderBy(*places)),
        }

    result = _run_job(request, master, "replicas", work, as_json=as_json)
    titles = {"stores": "Logs of the group", "differences": "Records that differ"}
    text = "" if result["differences"] else "The common records of the stores are equal."
    _print(result, titles, last=lambda: text, as_json=as_json)
    if result["differences"]:
        raise SystemExit(int(Exit.FOUND_FAULT))


def repair(request: AuditRequest, master: SparkMaster, file: Path, *, as_json: bool) -> None:
    """Write lost and quarantined messages into a file for `duemq send --from`."""
    from spark_reconciliation.jobs.jobs import TO_REPAIR
    from spark_reconciliation.jobs.jobs import repair as lost
    from spark_reconciliation.spark.read import read_table

    if exists(file):
        raise UsageError(f"{file} already exists: give another file")
    if not is_directory(file.parent):
        raise UsageError(f"{file} cannot be written: directory {file.parent} does not exist")

    def work(spark: SparkSession) -> Found:
        names = ("store", "phys_offset", "property_text", "body", "flag", "sys_flag")
        messages = read_table(spark, request.stores, "messages", names)
        verdicts, unread = _audited(spark, request)
        bad = verdicts.where(verdicts["verdict"].isin(*TO_REPAIR)).persist()
        count = _write(file, request, lost(bad, messages).limit(REPAIR_MAX).toLocalIterator())
        return {"written": [{"messages": count, "left": bad.count() - count}], "unread": unread}

    result = _run_job(request, master, "repair", work, as_json=as_json)
    [written] = result.pop("written")
    _print(
        result,
        {},
        last=lambda: _repair_text(file, **written),
        as_json=as_json,
        file=str(file),
        **written,
    )


def _repair_text(file: Path, messages: int, left: int) -> str:
    text = (
        f"{messages:,} messages were written to {file}; nothing was sent. Run "
        f"`duemq send --from {file}` to see its effect, then add --yes."
    )
    if not messages:
        text = f"No message to resend; {file} is empty."
    return text + (
        f" {left:,} more lost or quarantined messages are not in the file." if left else ""
    )


def _write(file: Path, request: AuditRequest, rows: Iterator[Any]) -> int:
    """Write messages and return their number; the file exists once all are written."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        with naming(file), unfinished.open("w", encoding="utf-8") as to:
            to.write(json.dumps({"format": REPAIR_FORMAT, "stores": request.stores}) + "\n")
            count = sum(bool(to.write(json.dumps(_line(row)) + "\n")) for row in rows)
        if exists(file):
            raise UsageError(f"{file} already exists: give another file")
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _line(row: Any) -> dict[str, Any]:
    values: dict[str, Any] = row.asDict()
    for name in ("body", "property_text"):
        values[name] = base64.b64encode(bytes(values[name] or b"")).decode()
    return values


def watch(
    request: AuditRequest,
    master: SparkMaster,
    home: Path,
    *,
    delay_ms: int,
    every_s: int,
    once: bool,
) -> None:
    """Audit the growing log until Ctrl-C; print each violation as a JSON line."""
    from spark_reconciliation.jobs.run import check_stores
    from spark_reconciliation.jobs.watch import Watch, WatchConfig
    from spark_reconciliation.spark.master import session_at

    alarm_count = [0]

    def show_alarms(alarms: Iterable[dict[str, object]]) -> None:
        for alarm in alarms:
            alarm_count[0] += 1
            print_json_line(alarm)

    with could_not_run(subject="the watch"):
        check_stores(request.stores)
        progress = WatchProgress(SystemClock().monotonic_s)
        progress.report("starting Spark")
        spark = session_at(master, with_format=True)
        try:
            config = WatchConfig(audit=request.config, delay_ms=delay_ms)
            watching = Watch(spark, home, config, SystemClock(), show_alarms)
            every_ms = 0 if once else every_s * 1_000
            query = watching.start(request.stores, every_ms=every_ms, tickMs=every_ms)
            progress.report(f"alarms are printed here and stored in {watching.alarms}")
            if once:
                progress.report("reading new records; the first run reads the whole log")
            else:
                progress.report(f"auditing every {every_s} s until Ctrl-C")
            wait_for(query, lambda: progress.report_batch(query))
            progress.report(f"{alarm_count[0]:,} {plural(alarm_count[0], 'violation')} reported")
        finally:
            spark.stop()


class WatchProgress:
    """Progress lines of a watch on standard error; a batch may take minutes."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._batch = -1
        self._started_s = self._reported_s = monotonic_s()

    def report(self, text: str) -> None:
        """Print a line with the elapsed time."""
        self._reported_s = self._monotonic_s()
        notice(f"{text} ({self._reported_s - self._started_s:.0f} s)")

    def report_batch(self, query: StreamingQuery) -> None:
        """Report a finished batch, or that the first one is still running."""
        last: Any = query.lastProgress
        if last is not None and last["batchId"] != self._batch:
            self._batch = last["batchId"]
            if last["numInputRows"]:
                self.report(f"{last['numInputRows']:,} records of the log audited")
        elif self._batch < 0 and self._monotonic_s() - self._reported_s >= REPORT_EVERY_S:
            self.report("still reading the log")


def wait_for(query: StreamingQuery, report_batch: Callable[[], None] = lambda: None) -> None:
    """Wait until a query ends or Ctrl-C stops it; call `report_batch` periodically.

    Ctrl-C only sets a flag: pyspark's handler would call Java during another call of Java.

    Raises:
        pyspark.errors.StreamingQueryException: The query failed.
    """
    stopped = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        while query.isActive and not stopped.wait(LOOK_S):
            report_batch()
        report_batch()
        if stopped.is_set():
            query.stop()
        else:
            query.awaitTermination()
    finally:
        signal.signal(signal.SIGINT, before)


def _audited(spark: SparkSession, request: AuditRequest) -> tuple[DataFrame, Rows]:
    """Return the verdicts and the unreadable positions."""
    from spark_reconciliation.scan.tables import CLOCK_SET_BACK
    from spark_reconciliation.spark.read import audit_stores

    verdicts, unread = audit_stores(spark, request.stores, request.config)
    gone = unread.where(unread["damage"] != CLOCK_SET_BACK)
    return verdicts, _rows(gone.orderBy("store", "phys_offset"))


def _rows(frame: DataFrame) -> Rows:
    return [row.asDict() for row in frame.limit(ROWS_MAX).collect()]


def _run_job(
    request: AuditRequest,
    master: SparkMaster,
    name: str,
    work: Callable[[SparkSession], Found],
    *,
    as_json: bool,
) -> Found:
    from spark_reconciliation.jobs.run import check_stores

    with could_not_run(subject=f"`reconcile {name}`"):
        check_stores(request.stores)
        master = with_engine(master, request.stores)
        return in_spark(master, name, work, shown=not as_json)


def _print(
    result: Found,
    titles: Mapping[str, str],
    *,
    last: Callable[[], str] = str,
    nothing: str = "",
    as_json: bool,
    **facts: Any,
) -> None:
    """Print the tables of a job; exit 1 if parts of the stores could not be read.

    Args:
        titles: Titles by table name; tables without rows are not printed.
        last: Returns the line after the tables.
        nothing: Line to print instead if no table has rows.
        facts: Values that `--json` prints before the tables.
    """
    unread = result["unread"]
    if as_json:
        print_json(facts | result)
    else:
        for name, title in titles.items():
            if result[name]:
                _table(title, result[name])
        text = last() or ("" if any(result[name] for name in titles) else nothing)
        console().print(text, markup=False, soft_wrap=True) if text else None
        print_unread(unread[:SHOWN_MAX])
        if unread:
            console().print("The result is incomplete: parts of the stores could not be read.")
    if unread:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _table(title: str, rows: Rows) -> None:
    from spark_reconciliation.report.page import shown_cell

    names: Sequence[str] = list(rows[0]) if rows else ["nothing"]
    columns = [_header(name, rows) for name in names]
    cells = [[shown_cell(name, row[name]) for name in names] for row in rows[:SHOWN_MAX]]
    print_table(title, columns, cells)
    if len(rows) > SHOWN_MAX:
        console().print(f"{len(rows) - SHOWN_MAX:,} more: --json prints all")


def _header(name: str, rows: Rows) -> str:
    from spark_reconciliation.report.page import TIMES

    if name in TIMES:
        return name.removesuffix("_ms").replace("_", " ")
    numbers = any(isinstance(row.get(name), int | float) for row in rows)
    return f"#{name}" if numbers else name
