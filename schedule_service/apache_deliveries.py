"""Deliveries of level messages by an Apache broker, found in the log at a start.

An Apache broker writes no origins, and its delayOffset.json has no checksum: the offset of a level
in it is a claim. A delivery of Apache has the topic, queue, key, birth, properties and body of its
source record; such a copy proves that the unit was delivered. Apache delivers the units of a level
in order, so a copy also proves every unit before it:

    queue      [ . . . . . . . . . c ][ c . ][ ? ? ? ]         c: the log has a copy
                        claim --------^    ^-------- the level continues here

    1. The last unit before the claim has a copy: the claim is true. One short scan from the due
       time of the unit finds it.
    2. It has none: units before it are searched, in steps of growing size. The level continues
       after the last unit that has a copy.
    3. Units after the claim, due before the end of the log, are searched in the same way: Apache
       writes the file every 10 s, so after a kill the claim is too low.

Not proved: two messages that are equal in everything named above, from a client that sets no key.

Source: ScheduleMessageService.messageTimeup
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from delayed_delivery.redirected import queue_number
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import Rows
from message_store.log.record import Record
from schedule_service.queues import ScheduleQueues
from schedule_service.undelivered import Offsets, Undelivered

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
FORWARD_UNITS: Final = 32
STEP_FACTOR: Final = 32
STEP_UNITS_MAX: Final = 262_144
CLOCK_SLACK_MS: Final = 3_600_000  # maximum tolerated step by which Apache's clock was set back
SCAN_RECORDS: Final = 4_096

Steps = Generator[Offsets, int | None, None]
"""Search in one level: yields units, receives the last of them that has a copy."""


def settle_delivered(
    store: MessageStore,
    queues: ScheduleQueues,
    undelivered: Iterable[Undelivered],
    claims: Mapping[int, int],
) -> None:
    """Remove the units that an Apache broker has delivered from `undelivered`.

    Args:
        claims: Level to the first offset that Apache's file names as undelivered.
    """
    copies = _Copies(store, queues)
    searches: dict[int, tuple[Steps, Offsets]] = {}
    for units in undelivered:
        claim = claims.get(units.level, 0)
        if claim > units.end:
            log.error(
                "level %d: delayOffset.json has offset %d, but the queue ends at %d: the offset is "
                "derived from the log",
                units.level,
                claim,
                units.end,
            )
        _advance(searches, units.level, _steps(units, min(claim, units.end), copies), None)
    for level, (steps, step) in list(searches.items()):
        if step.size == 1 and level in copies.find({level: step}, slack_ms=0):
            _advance(searches, level, steps, int(step[0]))
    while searches:
        delivered = copies.find({level: step for level, (_, step) in searches.items()})
        for level, (steps, _) in list(searches.items()):
            _advance(searches, level, steps, delivered.get(level))


def _advance(
    searches: dict[int, tuple[Steps, Offsets]], level: int, steps: Steps, last: int | None
) -> None:
    """Send a result to the search of a level; remove the search when it has ended."""
    try:
        searches[level] = steps, steps.send(last)
    except StopIteration:
        searches.pop(level, None)


def _steps(units: Undelivered, claim: int, copies: _Copies) -> Steps:
    """Search before the claim, then after it, and settle the units that were delivered."""
    before, size = units.offsets(0, claim), 1
    while before.size:
        last = yield before[-size:]
        if last is not None:
            units.settle_before(last + 1)
            break
        before, size = before[:-size], min(size * STEP_FACTOR, STEP_UNITS_MAX)
    rest = units.offsets(0, claim)
    if rest.size:
        log.error(
            "level %d: delayOffset.json has offset %d, but the log has no delivery of the last %d "
            "messages before it: they are pending from offset %d on",
            units.level,
            claim,
            rest.size,
            rest[0],
        )
        return
    size = FORWARD_UNITS
    while True:
        step = copies.due(units.level, units.offsets(claim, units.end)[:size])
        last = (yield step) if step.size else None
        if last is None:
            return
        units.settle_before(last + 1)
        claim, size = last + 1, min(size * STEP_FACTOR, STEP_UNITS_MAX)


class _Copies:
    """Search for copies of level messages in one log."""

    def __init__(self, store: MessageStore, queues: ScheduleQueues) -> None:
        self._store, self._queues = store, queues
        self._last_ms = store.store_ms(store.last_record) if store.last_record >= 0 else 0

    def due(self, level: int, offsets: Offsets) -> Offsets:
        """Return the units that were due when the last record of the log was stored."""
        due = [index for index in offsets.tolist() if self._due_ms(level, index) <= self._last_ms]
        return np.array(due, np.int64)

    def _due_ms(self, level: int, offset: int) -> int:
        return int(self._queues.due_ms(level, self._queues.units(level, offset, 1))[0])

    def find(self, steps: Mapping[int, Offsets], slack_ms: int = CLOCK_SLACK_MS) -> dict[int, int]:
        """Return, by level, the last unit that has a copy; levels without one are left out.

        Args:
            steps: Level to the queue offsets of its units.
            slack_ms: Time before the due time of a unit at which its copy may be stored.
        """
        searched: dict[int, list[tuple[int, int]]] = {}
        targets: set[tuple[str, int]] = set()
        start, first_due_ms = self._store.max_offset, self._last_ms
        for level, offsets in steps.items():
            for offset in offsets.tolist():
                source = self._source(level, offset)
                if source is None:
                    continue
                target = (
                    source.properties["REAL_TOPIC"],
                    queue_number(source.properties["REAL_QID"]),
                )
                targets.add(target)
                searched.setdefault(identity(source, *target), []).append((level, offset))
                start = min(start, source.phys_offset)
                first_due_ms = min(first_due_ms, self._due_ms(level, offset))
        if not searched:
            return {}
        return self._walk(max(start, self._position(first_due_ms - slack_ms)), searched, targets)

    def _source(self, level: int, offset: int) -> Record | None:
        """Return the record of a unit, None if it cannot be read or names no target."""
        units = self._queues.units(level, offset, 1)
        try:
            record = self._store.read_record(int(units[0]["phys_offset"]))
        except (RecordUnreadable, IndexError):
            return None
        return record if {"REAL_TOPIC", "REAL_QID"} <= record.properties.keys() else None

    def _position(self, time_ms: int) -> int:
        """Return a log offset before the first record that was stored at or after a time."""
        log_offset = self._store.log_file_before(time_ms)
        for level in self._queues.levels:
            queue_offset = self._store.search_offset(SCHEDULE_TOPIC, level - 1, time_ms, upper=True)
            for phys_offset in self._queues.units(level, queue_offset, 1)["phys_offset"].tolist():
                if self._store.store_ms(phys_offset) < time_ms:
                    log_offset = max(log_offset, phys_offset)
        return log_offset

    def _walk(
        self,
        start: int,
        searched: dict[int, list[tuple[int, int]]],
        targets: set[tuple[str, int]],
    ) -> dict[int, int]:
        last: dict[int, int] = {}
        left = sum(map(len, searched.values()))
        for rows in self._store.scan(start, count=SCAN_RECORDS):
            for row in self._candidates(rows, targets):
                if not left:
                    return last
                try:
                    record = self._store.read_record(int(row["phys_offset"]))
                except RecordUnreadable:
                    continue
                units = searched.get(identity(record, record.topic, record.queue_id))
                if units:
                    level, offset = units.pop(0)
                    last[level] = max(last.get(level, -1), offset)
                    left -= 1
        return last

    def _candidates(self, rows: Rows, targets: set[tuple[str, int]]) -> Rows:
        """Return the records in the targets' queues that DueMQ did not deliver."""
        topics = {name: self._store.topics.find(name) for name, _ in targets}
        queues = [topics[name] << 32 | queue_id for name, queue_id in targets if topics[name] >= 0]
        keys = rows["topic_index"].astype(np.int64) << 32 | rows["queue_id"]
        return rows[np.isin(keys, queues) & (rows["prepared_offset"] >= 0)]


def identity(record: Record, topic: str, queue_id: int) -> int:
    """Return a hash that a level message and its delivery by Apache have in common.

    Args:
        topic, queue_id: Target of the level message.
    """
    return hash(
        (
            topic,
            queue_id,
            record.born_ms,
            record.born_host,
            record.reconsume_times,
            record.flag,
            frozenset(record.properties.items()),
            record.body,
        )
    )
