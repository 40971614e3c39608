"""Session, progress line and error handling of commands that use Spark."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from duemq.cli.exits import Exit, fail
from duemq.cli.output import console
from duemq_common.errors import DueMQError
from duemq_common.log_lines import JsonFormatter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import TaskID

    from spark_reconciliation.jobs.phases import Phases
    from spark_reconciliation.spark.master import SparkMaster

T = TypeVar("T")
LOOK_S: Final = 0.2
STOP_S: Final = 5
"""Maximum seconds until an interrupted command ends: Spark stops, temporary files are removed."""
PHASES_LOG: Final = "spark_reconciliation.jobs.phases"


@contextmanager
def could_not_run(
    failed: Callable[[str], object] = lambda reason: None, *, subject: str = "the audit"
) -> Iterator[None]:
    """Exit 2 with one line if DueMQ, the disk or Spark raises an error in the block.

    Args:
        failed: Called with the error text before the exit.
        subject: Subject of the error text.
    """
    from spark_reconciliation.jobs.run import is_sparks, reason_of

    try:
        yield
    except (DueMQError, OSError) as error:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = f"{error}: free disk space, or name another directory" if is_full else str(error)
        failed(reason)
        fail(f"{subject} could not run: {reason}", Exit.USAGE)
    except Exception as error:
        if not is_sparks(error):
            raise
        failed(reason_of(error))
        fail(f"{subject} could not run: {reason_of(error)}", Exit.USAGE)


def with_engine(
    master: SparkMaster,
    stores: Sequence[str],
    *,
    spark_requested: bool = False,
    brief: bool = False,
) -> SparkMaster:
    """Return the master with the engine that the stores decide about.

    Args:
        spark_requested: Whether the command is one that only Spark can run.
        brief: Whether it is an audit that returns only counts and findings.
    Raises:
        UsageError: The requested engine is not possible, or Java is missing.
    """
    from spark_reconciliation.local.choice import SPARK_ENGINE, choose_engine
    from spark_reconciliation.spark.requirements import find_java

    given = bool(master.connect or master.settings or spark_requested)
    engine = choose_engine(master.engine, stores, spark_requested=given, brief=brief)
    if engine == SPARK_ENGINE and not master.connect:
        find_java()
    return replace(master, engine=engine)


def in_spark(
    master: SparkMaster, name: str, work: Callable[[SparkSession], T], *, shown: bool
) -> T:
    """Return the result of `work`, with progress on standard error.

    That is a line on a terminal if `shown`, else a JSON object at the end of each phase.
    Spark stops at the exit of the process: that takes a second, and the result is printed before.
    """
    from spark_reconciliation.engine import use_engine_of
    from spark_reconciliation.jobs.phases import Phases
    from spark_reconciliation.local.choice import LOCAL_ENGINE
    from spark_reconciliation.spark.master import session_at

    start = "starting" if master.engine == LOCAL_ENGINE else "starting Spark"
    with _StageProgress(shown=shown) as progress, nullcontext() if shown else _phase_events():
        spark = progress.run(start, lambda: session_at(master))
        atexit.register(_stop, spark)

        def run() -> T:
            with use_engine_of(spark):
                return work(spark)

        return progress.run(name, run, spark, Phases())


@contextmanager
def _phase_events() -> Iterator[None]:
    """Print the end of each phase as a JSON object to standard error."""
    events, handler = logging.getLogger(PHASES_LOG), logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    level = events.level
    events.addHandler(handler)
    events.setLevel(logging.INFO)
    try:
        yield
    finally:
        events.removeHandler(handler)
        events.setLevel(level)


def _stop(spark: SparkSession) -> None:
    """Stop Spark; its Java process may have died."""
    with suppress(Exception):
        spark.stop()


def _end_process(error: KeyboardInterrupt | SystemExit, spark: SparkSession | None) -> NoReturn:
    """End the process although a thread works: an exit in order would wait for its result."""
    if spark is not None:
        stop = threading.Thread(target=_stop, args=(spark,), daemon=True)
        stop.start()
        stop.join(STOP_S)
    code = error.code if isinstance(error, SystemExit) else Exit.INTERRUPTED
    os._exit(code if isinstance(code, int) else Exit.INTERNAL)


class _StageProgress:
    """Progress line: phase, its share that is done, elapsed time, and an estimate of the rest."""

    def __init__(self, *, shown: bool) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[part]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        to = console(stderr=True)
        self._bars = Progress(
            *columns,
            console=to,
            transient=True,
            disable=not (shown and to.is_terminal),
            redirect_stdout=False,  # results are printed there
        )
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> _StageProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        self._threads.shutdown(wait=True)

    def run(
        self,
        name: str,
        work: Callable[[], T],
        spark: SparkSession | None = None,
        phases: Phases | None = None,
    ) -> T:
        """Run `work` in another thread; return its result.

        Args:
            phases: Progress to which `work` reports.
        """
        line, shown = self._bars.add_task(name, total=None, part=""), ""
        result: Future[T] = self._threads.submit(partial(_report_to, phases, work))
        try:
            while not wait_for([result], LOOK_S).done:
                if phases is not None and phases.name not in ("", shown):
                    shown = phases.name
                    self._bars.reset(line, total=None, description=f"{name}: {shown}", part="")
                if phases is not None and phases.total:
                    done, total = phases.done, phases.total
                    self.show(line, done, total, f"{done >> 20:,} of {total >> 20:,} MiB")
                else:
                    done, total = _tasks(spark)
                    self.show(line, done, total, f"{done} of {total} tasks")
        except (KeyboardInterrupt, SystemExit) as error:  # Ctrl-C, SIGTERM
            self._bars.stop()
            _end_process(error, spark)
        self._bars.remove_task(line)
        return result.result()

    def show(self, line: TaskID, done: int, total: int, part: str) -> None:
        """Show the finished part; the bar is indeterminate before the first."""
        if total:
            self._bars.update(line, completed=done, total=total if done else None, part=part)


def _report_to(phases: Phases | None, work: Callable[[], T]) -> T:
    """Run `work`, and let it report to phases."""
    with nullcontext() if phases is None else phases.active():
        return work()


def _tasks(spark: object) -> tuple[int, int]:
    """Return the numbers of finished tasks and of all tasks of the running stages."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    reported = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in reported), sum(s.numTasks for s in reported)
