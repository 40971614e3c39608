"""Session, progress line and error handling of commands that use Spark."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from duemq.cli.exits import Exit, fail
from duemq.cli.output import console
from duemq_common.errors import DueMQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import TaskID

    from spark_reconciliation.spark.master import SparkMaster

T = TypeVar("T")
LOOK_S: Final = 0.2


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
        failed(str(error))
        fail(f"{subject} could not run: {error}", Exit.USAGE)
    except Exception as error:
        if not is_sparks(error):
            raise
        failed(reason_of(error))
        fail(f"{subject} could not run: {reason_of(error)}", Exit.USAGE)


def in_spark(
    master: SparkMaster, name: str, work: Callable[[SparkSession], T], *, shown: bool
) -> T:
    """Return the result of `work`, with a progress line on standard error.

    Spark stops at the exit of the process: that takes a second, and the result is printed before.
    """
    from spark_reconciliation.spark.master import session_at

    with _StageProgress(shown=shown) as progress:
        spark = progress.run("starting Spark", lambda: session_at(master))
        atexit.register(_stop, spark)
        return progress.run(name, lambda: work(spark), spark)


def _stop(spark: SparkSession) -> None:
    """Stop Spark; its Java process may have died."""
    with suppress(Exception):
        spark.stop()


class _StageProgress:
    """Progress line with the number of finished Spark tasks."""

    def __init__(self, *, shown: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        part = TextColumn("{task.fields[part]}")
        columns = (TextColumn("{task.description}"), BarColumn(), part, TimeElapsedColumn())
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

    def run(self, name: str, work: Callable[[], T], spark: object = None) -> T:
        """Run `work` in another thread; return its result."""
        line = self._bars.add_task(name, total=None, part="")
        result: Future[T] = self._threads.submit(work)
        while not wait_for([result], LOOK_S).done:
            self.show(line, *_tasks(spark))
        self._bars.remove_task(line)
        return result.result()

    def show(self, line: TaskID, done: int, total: int) -> None:
        """Show the number of finished tasks; the bar is indeterminate before the first."""
        if total:
            count = total if done else None
            part = f"{done} of {total} tasks"
            self._bars.update(line, completed=done, total=count, part=part)


def _tasks(spark: object) -> tuple[int, int]:
    """Return the numbers of finished tasks and of all tasks of the running stages."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    reported = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in reported), sum(s.numTasks for s in reported)
