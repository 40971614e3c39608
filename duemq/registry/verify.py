"""Verification of the progress of groups, read-only; part of `duemq store verify`.

    consumerOffset.json   the checksum over the progress of transactions and revivals, the log that
                          it was taken of, and its offsets: none is negative, or after the end of
                          its queue

DueMQ derives the progress of internal groups from the log at its next start, and sets offsets of
other groups to the end of their queue. An Apache broker would skip half messages or revivals.
"""

from __future__ import annotations

from pathlib import Path

from duemq.registry.consumer_offsets import FILE_NAME
from duemq.registry.offset_table import decode
from duemq_common.topics import INTERNAL_GROUP_PREFIX
from message_store.recovery.truncations import Truncations
from message_store.verify import LogSummary, Part, Progress, Report
from message_store.verify.files import read_progress
from message_store.verify.queues import queue_end

KIND = "group-progress"
DERIVED = "the next start of DueMQ derives it from the log, an Apache broker skips messages"


def check_offsets(root: Path, log: LogSummary, report: Report, progress: Progress) -> None:
    """Add the faults of consumerOffset.json to a report."""
    path = root / "config" / FILE_NAME
    content = read_progress(path, KIND, decode, report)
    if content is None:
        return
    if not content.is_proved:
        text = f"another program has changed the progress of internal groups; {DERIVED}"
        report.add("error", KIND, path, 0, text)
    truncations = Truncations.load(root)
    floor = truncations.floor(truncations.followed(FILE_NAME))
    if content.last_record.offset >= min(floor, log.end):
        text = "the log has lost its end since: the next start fits the offsets to the log"
        report.add("warning", KIND, path, 0, text)
        return
    if not log.has(content.last_record):
        text = f"it was written for another store; {DERIVED}"
        report.add("error", KIND, path, 0, text)
    for (topic, group), queues in sorted(content.table.items()):
        is_internal = group.startswith(INTERNAL_GROUP_PREFIX)
        for queue_id, offset in sorted(queues.items()):
            end = queue_end(root, log, topic, queue_id)
            if 0 <= offset <= (end or 0) or (end is None and not is_internal):
                continue  # without a queue: the topic was deleted, or has no messages
            text = f"group {group} has offset {offset} in queue {queue_id} of {topic}, but "
            text += f"the queue ends at {end or 0}; "
            if is_internal:
                report.add("error", KIND, path, 0, text + DERIVED)
            else:
                report.add("warning", KIND, path, 0, text + "the group continues at its end")


OFFSETS = Part((), check_offsets)
