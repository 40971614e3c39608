"""Runs an audit and prints it. Spark is loaded here and nowhere else in the command line."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.cli.exits import Exit, fail
from broker.cli.output import console, print_json, table
from broker.cli.times import parse_time
from message_store.clock import SystemClock
from message_store.errors import DueMQError, UsageError
from reconciliation.needs import find_java, require_packages

if TYPE_CHECKING:
    from reconciliation.summary import Summary
    from reconciliation.verdicts import AuditConfig

T = TypeVar("T")
LOOK_S: Final = 0.2
ROWS_MAX: Final = 100_000  # of a curve in the report


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for; see `reconcile.run`."""

    stores: tuple[str, ...]
    late_ms: int = 2_000
    as_of: str = ""
    levels: str = ""
    out: Path | None = None
    report: Path | None = None
    cores: int = 0
    memory: str = "2g"
    spark_log: str = ""


def reconcile(wanted: Wanted, *, as_json: bool) -> None:
    """Audit, print, and exit 0 (clean), 1 (findings) or 2 (could not run)."""
    try:
        require_packages()
        find_java()
        _check_stores(wanted.stores)
        summary = _audit(wanted, shown=not as_json)
    except (DueMQError, OSError) as error:
        fail(f"the audit could not run: {error}", Exit.USAGE)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        fail(f"the audit could not run: {_reason(error)}", Exit.USAGE)
    if as_json:
        print_json(summary.to_json())
    else:
        _print(wanted, summary)
    if not summary.clean:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _check_stores(stores: tuple[str, ...]) -> None:
    """Raise UsageError for a directory that is no store, before Java starts."""
    from reconciliation.files import Root

    for store in stores:
        root = Root(store.rstrip("/"))
        if root.is_local and not (root.folders("consumequeue") or root.files("commitlog")):
            raise UsageError(f"{store} is no store: it has neither commitlog nor consumequeue")


def _audit(wanted: Wanted, *, shown: bool) -> Summary:
    from reconciliation.session import local_session

    with _Progress(shown=shown) as progress:
        config = _config(wanted)
        spark = progress.run(
            "starting Spark",
            lambda: local_session(
                cores=wanted.cores, memory=wanted.memory, log_level=wanted.spark_log
            ),
        )
        try:
            return progress.run("audit", lambda: _summary(spark, wanted, config), spark)
        finally:
            spark.stop()


def _config(wanted: Wanted) -> AuditConfig:
    from reconciliation.verdicts import AuditConfig
    from schedule_service.levels import parse_levels

    as_of_ms = parse_time(wanted.as_of, SystemClock().now_ms()) if wanted.as_of else None
    config = AuditConfig(late_ms=wanted.late_ms, as_of_ms=as_of_ms)
    if not wanted.levels:
        return config
    delays = tuple(int(delay) for delay in parse_levels(wanted.levels)[1:])
    return AuditConfig(late_ms=wanted.late_ms, as_of_ms=as_of_ms, levels_ms=delays)


def _summary(spark: Any, wanted: Wanted, config: AuditConfig) -> Summary:
    from reconciliation.jobs import forecast, lateness
    from reconciliation.read import audit_stores
    from reconciliation.report import html_report
    from reconciliation.summary import summarize, write_parquet

    verdicts, unread = audit_stores(spark, wanted.stores, config)
    verdicts = verdicts.persist()
    if wanted.out is not None:
        write_parquet(verdicts, str(wanted.out))
    summary = summarize(verdicts, unread)
    if wanted.report is not None:
        page = html_report(
            summary,
            stores=wanted.stores,
            lateness=[row.asDict() for row in lateness(verdicts).limit(ROWS_MAX).collect()],
            forecast=[row.asDict() for row in forecast(verdicts).limit(ROWS_MAX).collect()],
            at_ms=SystemClock().now_ms(),
        )
        wanted.report.write_text(page, encoding="utf-8")
    return summary


class _Progress:
    """A line that says what is done; tasks of Spark are counted while they run."""

    def __init__(self, *, shown: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bars = Progress(
            *columns, console=console(stderr=True), transient=True, disable=not shown
        )
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> _Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        self._threads.shutdown(wait=True)

    def run(self, what: str, work: Callable[[], T], spark: Any = None) -> T:
        """Return what `work` returns; it runs in another thread meanwhile."""
        line = self._bars.add_task(what, total=None)
        result: Future[T] = self._threads.submit(work)
        while not wait_for([result], LOOK_S).done:
            if spark is not None:
                done, total = _tasks(spark)
                self._bars.update(line, completed=done, total=total or None)
        self._bars.remove_task(line)
        return result.result()


def _tasks(spark: Any) -> tuple[int, int]:
    """Return how many tasks of the stages that run are done, and all of them."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)


def _reason(error: Exception) -> str:
    """Return the last line of a Python traceback inside a Spark error, or its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("message_store.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return (lines or [type(error).__name__])[0]


def _print(wanted: Wanted, summary: Summary) -> None:
    out = console()
    rows = [(name, f"{count:,}") for name, count in summary.verdicts.items()]
    out.print(table("Scheduled messages", ("verdict", "#messages"), rows))
    times = [f"{name} {value}" for name, value in summary.lateness_ms.items() if value is not None]
    if times:
        out.print(f"Late by, in ms: {', '.join(times)}", markup=False)
    for row in summary.offenders:
        where = f"{row['store']}: log offset {row['root']}"
        what = f"{row['topic']}, due {row['due_ms']}, delivered {row['delivered_ms']}"
        out.print(
            f"{row['verdict']:20}{where}: {row['why']} ({what})", markup=False, soft_wrap=True
        )
    for row in summary.unread:
        text = f"{'not read':20}{row['store']}: log offset {row['phys_offset']}: {row['damage']}"
        out.print(text, markup=False, soft_wrap=True)
    out.print(_verdict(summary), markup=False)


def _verdict(summary: Summary) -> str:
    kept = f"{summary.messages:,} messages"
    if not summary.complete:
        return f"The audit is incomplete: not everything could be read ({kept} have a verdict)."
    return f"Every promise was kept ({kept})." if summary.clean else f"There are findings ({kept})."
