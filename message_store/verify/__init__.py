"""Verification of a whole store, read-only: findings with file and byte.

    commit log      every record, its position and its CRC; the bytes between and after records
    consume queues  every unit has its record, every record its unit
    index           every item has its key, every key its item
    config files    the file or its backup is readable

Stores of Apache (4.9, 5.x) and of DueMQ can be checked, also after a crash; file sizes are taken
from the files. A broker that uses the store changes it during the check: stop the broker, or check
a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duemq_common.errors import UsageError
from duemq_common.existence import exists
from message_store.log.page_guard import page_guard
from message_store.verify.configs import (
    check_checkpoint,
    check_configs,
    check_mark,
    check_surroundings,
    replaced_ranges,
)
from message_store.verify.files import report_unreadable
from message_store.verify.index import check_index
from message_store.verify.log import LogSummary, read_log
from message_store.verify.queues import check_queues
from message_store.verify.report import Progress, Report, StoreFinding

__all__ = ["LogSummary", "Part", "Progress", "Report", "StoreFinding", "verify_store"]

STORE_PARTS = ("commitlog", "consumequeue", "index", "config", "checkpoint")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a store that another package checks.

    Attributes:
        names: Files and directories below the root that it checks.
        check: Called after the checks of log and queues; it adds to the report.
    """

    names: tuple[str, ...]
    check: Callable[[Path, LogSummary, Report, Progress], None]


def verify_store(
    path: Path,
    progress: Progress | None = None,
    *,
    commitlog: Path | None = None,
    index_slots: int = 0,
    parts: Sequence[Part] = (),
) -> Report:
    """Check the store in `path`; return all findings and counts.

    Args:
        progress: Called with (phase, done, total) during the check.
        commitlog: Directory of the log if it is not `path`/commitlog.
        index_slots: maxHashSlotNum if known; otherwise found from the files.
        parts: Further checks; files that no check covers are reported as not checked.
    Raises:
        UsageError: `path` is not a store.
    """
    if not any(exists(path / name) for name in STORE_PARTS) and commitlog is None:
        raise UsageError(f"{path} is not a store: it has none of {', '.join(STORE_PARTS)}")
    progress = progress or _no_progress
    report = Report(path)
    pages_before = len(page_guard().pages)
    crashed = exists(path / "abort")
    tables = check_configs(path, report)
    summary = read_log(commitlog or path / "commitlog", report, progress, crashed=crashed)
    summary.replaced_ranges = replaced_ranges(path)
    check_queues(
        path / "consumequeue",
        summary,
        report,
        progress,
        known_topics=frozenset(tables.get("topics.json", {}).get("topicConfigTable", {})),
        deleted=tables.get("deletedTopics.json", {}).get("deletedTopics", {}),
    )
    check_index(path / "index", summary, report, progress, slots=index_slots)
    check_checkpoint(path / "checkpoint", report, summary.last_store_ms, summary.end)
    check_mark(path / "config" / "duemq.mark", report)
    for part in parts:
        part.check(path, summary, report, progress)
    check_surroundings(path, report, [name for part in parts for name in part.names])
    report_unreadable(report, pages_before)
    return report


def _no_progress(phase: str, done: int, total: int) -> None:
    """Ignore the progress."""
