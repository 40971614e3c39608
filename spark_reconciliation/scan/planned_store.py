"""Snapshot of a store at planning time: log, and positions of levels, timers and queues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from duemq_common.errors import UsageError
from spark_reconciliation.audit.delivery_units import CHECKPOINT_FILE, read_queue_coverage
from spark_reconciliation.audit.level_times import read_delays
from spark_reconciliation.audit.progress_checks import impossible_positions
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import (
    LOG,
    MARK_FILE,
    Finding,
    LogPlan,
    files_of_row,
    plan_log,
)
from spark_reconciliation.scan.store_part import StorePart
from spark_reconciliation.scan.store_state import (
    OFFSETS_FILE,
    Progress,
    QueueCoverage,
    read_progress,
)
from spark_reconciliation.scan.unit_tables import GROUPS_FILE

RECORD_BYTES: Final = 512  # assumed size of a record that is read at its log offset
NO_STORE: Final = "it has neither commitlog nor consumequeue"


@dataclass(frozen=True, slots=True)
class Planned:
    """Snapshot of a store.

    Attributes:
        unread: Findings about unreadable files with positions.
        part: Part of the store to read; None: all of it.
    """

    root: Root
    plan: LogPlan
    progress: Progress
    unread: tuple[Finding, ...]
    part: StorePart | None = None

    @property
    def last_ms(self) -> int:
        """Newest time of the store: of a record, or to which the timers have read."""
        return max(self.plan.last_ms, self.progress.read_ms or 0)

    @property
    def is_covered(self) -> bool:
        """Whether queues must have units of records up to a known position."""
        return self.progress.queue_coverage != QueueCoverage()

    @property
    def scanned_bytes(self) -> int:
        """Bytes of the log that are read."""
        if self.part is None:
            return self.plan.end - self.plan.min
        return self.plan.end - self.part.start + self.part.records.size * RECORD_BYTES


def must_be_store(root: Root) -> None:
    """Check that a directory has a log, queues, or the positions that a broker without a message
    has already written.

    Raises:
        UsageError: It has none of them.
        OSError: It cannot be read.
    """
    if root.files(LOG) or root.folders("consumequeue"):
        return
    if not {OFFSETS_FILE, GROUPS_FILE} & {entry.path for entry in root.files("config")}:
        raise UsageError(f"{root.url} is not a store: {NO_STORE}")


def plan_store(
    number: int, path: str, *, progress: bool = True, records: Sequence[int] = ()
) -> Planned:
    """Read the progress of levels and timers, then the end of the log; return the snapshot.

    In this order, the log up to its end has the delivery of each message that they have passed.

    Args:
        progress: Whether the progress is read.
        records: Log offsets of known records, see `plan_log`.
    Raises:
        UsageError: The path is not a store.
        OSError: The directory of the log cannot be read.
    """
    root = Root(path.rstrip("/"))
    must_be_store(root)
    store_progress, unread = Progress(number), list[Finding]()
    if progress:
        whole = LogPlan.of_files(files_of_row(root, LOG))
        store_progress, unread = read_progress(number, root, whole)
        store_progress = _with_queues(store_progress, root, whole, unread)
    plan = plan_log(root, records=records)
    if progress:
        unread += impossible_positions(root, plan, store_progress)
    return Planned(root, plan, replace(store_progress, log_min=plan.min), tuple(unread))


def _with_queues(
    progress: Progress, root: Root, plan: LogPlan, findings: list[Finding]
) -> Progress:
    """Return the progress with the coverage of the queues; add findings about unreadable files."""
    try:
        progress = replace(progress, queue_coverage=read_queue_coverage(root))
    except OSError as error:
        path = MARK_FILE if "config" in str(error.filename) else CHECKPOINT_FILE
        text = f"it cannot be read: {error}"
        findings.append(Finding(root.url, path, 0, 0, "unreadable", text))
    with suppress(OSError):  # `findings` reports queues and log files
        progress = replace(progress, delays=read_delays(root, plan))
    return progress
