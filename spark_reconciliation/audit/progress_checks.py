"""Positions that no broker can have reached: after the end of the queue that they count.

    config/delayOffset.json      level 3 has settled 1,000,012 units
    SCHEDULE_TOPIC_XXXX/2        12 units                              -> impossible
    config/consumerOffset.json   progress of consumers, transactions and revivals
    config/timercheck            missing, although the timers of Apache's broker have a queue

A position that is too far but still inside its queue passes units that were never delivered; the
audit finds their messages one by one (`lost`). Queues may lack the units of the newest records,
see `delivery_units`; as many units as these records can have are allowed after their end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from duemq_common.topics import INTERNAL_GROUP_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.layout import CQ_UNIT, RECORD_FIXED_BYTES
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import MARK_FILE, Finding, LogPlan, files_of_row
from spark_reconciliation.scan.store_state import (
    CHECK_FILE,
    OFFSETS_FILE,
    TIMER_FILE,
    Attempts,
    Progress,
    is_void,
    read_check,
    read_json,
)
from spark_reconciliation.scan.unit_tables import GROUPS_FILE, group_offsets

IMPOSSIBLE: Final = "impossible"
TIMER_QUEUE: Final = f"consumequeue/{TIMER_TOPIC}/0"
UNIT_BYTES: Final = CQ_UNIT.itemsize


def impossible_positions(root: Root, plan: LogPlan, progress: Progress) -> list[Finding]:
    """Return a finding for each position that is negative or after the end of its queue.

    An unreadable consumerOffset.json is a finding, too; `store_state` and `file_checks` report
    other files.
    """
    attempt, groups = Attempts(root), Attempts(root)
    saved = attempt(OFFSETS_FILE, lambda: dict(_saved_offsets(root))) or {}
    check = attempt(CHECK_FILE, lambda: read_check(root)) or {}
    behind = max(plan.end - max(progress.queue_coverage.end, plan.min), 0) // RECORD_FIXED_BYTES
    places = []
    if not attempt(OFFSETS_FILE, partial(is_void, root, OFFSETS_FILE)):
        places += [
            (OFFSETS_FILE, f"level {level}", SCHEDULE_TOPIC, level - 1, offset)
            for level, offset in saved.items()
        ]
    if not attempt(TIMER_FILE, partial(is_void, root, TIMER_FILE)):
        places += [
            (CHECK_FILE, name, TIMER_TOPIC, 0, check[name])
            for name in ("queue_offset", "master_queue_offset")
            if name in check
        ]
    topics = attempt("consumequeue", lambda: frozenset(root.folders("consumequeue")))
    places += groups(GROUPS_FILE, lambda: list(_group_offsets(root, topics or frozenset()))) or []
    findings, ends = groups.findings, dict[str, int | None]()
    for path, name, topic, queue_id, offset in places:
        below = f"consumequeue/{topic}/{queue_id}"
        if below not in ends:
            ends[below] = attempt(below, partial(queue_end, root, below))
        end = ends[below]
        if end is not None and not 0 <= offset <= end + behind:
            text = f"{name} is at unit {offset:,} of a queue with {end:,} units"
            findings.append(Finding(root.url, path, 0, 0, IMPOSSIBLE, text))
    return findings + (attempt(CHECK_FILE, partial(_missing_checkpoint, root)) or [])


def _missing_checkpoint(root: Root) -> list[Finding]:
    """Return a finding if the timers of Apache's broker have a queue and no checkpoint.

    Apache creates timercheck before it accepts a timer; without it, each timer is delivered twice.
    DueMQ derives it again.
    """
    names = {f"config/{entry.name}" for entry in root.files("config")}
    if {CHECK_FILE, MARK_FILE} & names or not queue_end(root, TIMER_QUEUE):
        return []
    text = "there is no checkpoint, although the queue of the timers has units"
    return [Finding(root.url, CHECK_FILE, 0, 0, "gap", text)]


def _saved_offsets(root: Root) -> Iterator[tuple[int, int]]:
    """Yield (level, settled units) of delayOffset.json."""
    for level, offset in (read_json(root, OFFSETS_FILE).get("offsetTable") or {}).items():
        yield int(level), int(offset)


def _group_offsets(root: Root, topics: frozenset[str]) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield (file, group, topic, queue, offset) of consumerOffset.json.

    A group of clients keeps its offsets after its topic was deleted: topics without queues are
    skipped.
    """
    for name, queue_id, offset in group_offsets(read_json(root, GROUPS_FILE)):
        topic, _, group = name.partition("@")
        if topic in topics or (group.startswith(INTERNAL_GROUP_PREFIX) and topics):
            yield GROUPS_FILE, f"group {group}", topic, queue_id, offset


def queue_end(root: Root, below: str) -> int:
    """Return the queue offset after the last unit of a queue; 0 without units.

    Raises:
        OSError: A file cannot be read.
    """
    for entry in reversed(files_of_row(root, below)):
        data = root.read(entry.path, 0, entry.size // UNIT_BYTES * UNIT_BYTES)
        used = np.flatnonzero(np.frombuffer(data, CQ_UNIT)["size"] > 0)
        if used.size:
            return int(entry.name) // UNIT_BYTES + int(used[-1]) + 1
    return 0
