"""Verification of the levels' progress, read-only; part of `duemq store verify`.

    delayOffset.json     its checksum, the log that it was taken of, and its offsets: none is after
                         the end of its queue, or after a unit that was not due yet

DueMQ derives such offsets from the log at its next start; an Apache broker would skip messages.
Whether an offset of an Apache broker within its queue is true is shown by a start, or by an audit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duemq_common.existence import is_directory
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import CQ_UNIT, UNIT_BYTES
from message_store.recovery.truncations import Truncations
from message_store.verify import LogSummary, Part, Progress, Report
from message_store.verify.files import is_offset, map_file, read_progress
from message_store.verify.queues import queue_end
from schedule_service.levels import TAGS_HASH_BITS
from schedule_service.recovery import OFFSETS_FILE, Saved, decode_saved

KIND = "level-progress"
DERIVED = "the next start of DueMQ derives the offset from the log, an Apache broker skips messages"


def check_levels(root: Path, log: LogSummary, report: Report, progress: Progress) -> None:
    """Add the faults of delayOffset.json to a report."""
    path = root / "config" / OFFSETS_FILE
    saved = read_progress(path, KIND, decode_saved, report)
    if saved is None:
        return
    if not saved.has_checksum:
        text = "DueMQ 0.1.0 wrote it: the next start derives the offsets from the log"
        report.add("warning", KIND, path, 0, text)
        return
    if saved.log_offset is not None:
        floor = Truncations.load(root).floor(saved.generation)
        if saved.log_offset > min(floor, log.end):
            text = "the log was truncated since: the next start derives the offsets from the log"
            report.add("warning", KIND, path, 0, text)
            return
        if not log.has(saved.last_record):
            text = f"it was not written for this log; {DERIVED}"
            report.add("error", KIND, path, 0, text)
    _check_offsets(root, path, saved, log, report)


def _check_offsets(root: Path, path: Path, saved: Saved, log: LogSummary, report: Report) -> None:
    for level, offset in sorted(saved.offsets.items()):
        end = queue_end(root, log, SCHEDULE_TOPIC, level - 1) or 0
        if offset > end:
            text = f"level {level} has offset {offset}, but its queue ends at {end}; {DERIVED}"
            report.add("error", KIND, path, 0, text)
        elif saved.log_offset is not None:
            continue  # it may be after messages that were settled before they were due
        elif offset and (due_ms := _due_ms(root, level, offset - 1)) > log.last_store_ms:
            text = (
                f"level {level} has offset {offset}, but the message before it is due at {due_ms}, "
                f"and the last record of the log is of {log.last_store_ms}: the next start "
                f"searches its delivery in the log"
            )
            report.add("warning", KIND, path, 0, text)


def _due_ms(root: Path, level: int, offset: int) -> int:
    """Return the due time of a unit; 0 if it has none, or cannot be read."""
    directory = root / "consumequeue" / SCHEDULE_TOPIC / str(level - 1)
    for path in sorted(directory.glob("*")) if is_directory(directory) else []:
        position = offset * UNIT_BYTES - int(path.name) if is_offset(path.name) else -1
        if position >= 0 and position + UNIT_BYTES <= path.stat().st_size:
            unit = np.frombuffer(map_file(path)[position : position + UNIT_BYTES], CQ_UNIT)[0]
            due_ms = int(unit["tags_code"])
            return due_ms if unit["size"] > 0 and due_ms >> TAGS_HASH_BITS else 0
    return 0


LEVELS = Part((), check_levels)
