"""Open pops of messages: popped by a group, not acknowledged, and not visible again yet.

    timer topic    ... checkpoint (T, 3, offsets 7 to 9) ... acknowledgement of 8 ...
                       `--> 7 and 9 are invisible until the revive time

Nothing is stored for this: the search reads the checkpoints and acknowledgements in the log that
are newer than the message and than the first undecided checkpoint. It selects them by the beginning
of their unique key, `topic@queue@offset@group@pop time`, and decodes only those that can concern
the message. A record that a client made to look like one of them is in another topic.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field

from duemq.pop.checkpoints import Key, PopCheckpoint, RecordError, parse_revive_record
from duemq.pop.names import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, revive_topic
from duemq.pop.order_info import OrderTable
from duemq.registry.managers import Identity
from duemq_common.bodies.histories import OpenPop
from duemq_common.errors import StoreError
from duemq_common.text import java_hash
from duemq_common.topics import TIMER_TOPIC
from message_store.layout import Rows
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

TIMERS_MAX: Final = 100_000  # newest timers that a search reads
PIECE_UNITS: Final = 2_048  # timers read between two yields
QUEUES_MAX: Final = 8  # queues of the newest records of one request
DISTANCE_MAX: Final = 4_096  # from the start of a pop to its last message
TAGS: Final = [java_hash(tag) for tag in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)]
DIGITS_MAX: Final = 20
SEVERAL: Final = re.compile(rb"-1@([^@\x02]*)@(\d{1,19})@")
QueueName = tuple[str, int]


class QueueSearch(Struct):
    """Search for the pops of some messages of one queue.

    Attributes:
        needle: Beginning of the unique keys of the queue's checkpoints and acknowledgements.
        offsets: Queue offsets of the messages.
        checkpoints: Checkpoints that contain one of the messages.
        acknowledged: Acknowledged messages by the key of their checkpoint.
    """

    needle: bytes
    offsets: list[int]
    checkpoints: dict[Key, PopCheckpoint] = field(default_factory=dict)
    acknowledged: dict[Key, set[int]] = field(default_factory=dict)

    def positions(self, data: bytes) -> Iterator[int]:
        """Yield the positions of unique keys in records that can concern the messages.

        A key names the first offset of a pop, or the acknowledged one; -1: several.
        """
        needle, size = self.needle, len(self.needle)
        first, last = min(self.offsets) - DISTANCE_MAX, max(self.offsets)
        position = data.find(needle)
        while position >= 0:  # plain searches: a regular expression takes three times as long
            start = position + size
            text = data[start : data.find(b"@", start, start + DIGITS_MAX)]
            if first <= int(text) <= last if text.isdigit() else self._has_pop(data, start):
                yield position
            position = data.find(needle, start)

    def _has_pop(self, data: bytes, start: int) -> bool:
        """Return whether an acknowledgement of several messages names one of the checkpoints."""
        key = SEVERAL.match(data, start)
        if key is None:
            return False
        name, pop_ms = key[1].decode(errors="replace"), int(key[2])
        return any((each[1], each[4]) == (name, pop_ms) for each in self.checkpoints)

    def add(self, record: Record, broker_name: str) -> None:
        """Add a checkpoint or an acknowledgement."""
        try:
            item = parse_revive_record(record, broker_name)
        except RecordError:
            return  # the reviver reports it
        if not isinstance(item, PopCheckpoint):
            self.acknowledged.setdefault(item.key, set()).update(item.offsets)
        elif not set(self.offsets).isdisjoint(item.offsets):
            self.checkpoints[item.key] = item

    def unacknowledged(self, offset: int) -> Iterator[PopCheckpoint]:
        """Yield the checkpoints in which a message is not acknowledged."""
        for key, checkpoint in self.checkpoints.items():
            acked = checkpoint.acked | self.acknowledged.get(key, set())
            if offset in checkpoint.offsets and offset not in acked:
                yield checkpoint


class OpenPops:
    """Search for open pops.

    Args:
        orders: Orderly pops, which have no checkpoints.
        first_needed: Returns the first log offset that undecided checkpoints need; None: there are
            none.
        open_until_ms: Returns the time from which a message of a checkpoint is visible; None: it is
            acknowledged, or visible.
    """

    def __init__(
        self,
        store: MessageStore,
        identity: Identity,
        orders: OrderTable,
        first_needed: Callable[[], int | None],
        open_until_ms: Callable[[PopCheckpoint, int], int | None],
    ) -> None:
        self._store, self._identity, self._orders = store, identity, orders
        self._first_needed, self._open_until_ms = first_needed, open_until_ms
        self._revive_topic = revive_topic(identity.cluster_name)

    async def of(self, records: Sequence[Record]) -> tuple[dict[int, list[OpenPop]], bool]:
        """Return (open pops by the log offset of the record, whether older ones were omitted)."""
        queues: dict[QueueName, list[Record]] = {}
        for record in sorted(records, key=lambda each: each.phys_offset, reverse=True):
            queues.setdefault((record.topic, record.queue_id), []).append(record)
        omitted = len(queues) > QUEUES_MAX
        queues = dict(list(queues.items())[:QUEUES_MAX])
        searches = {
            name: QueueSearch(
                f"UNIQ_KEY\x01{name[0]}@{name[1]}@".encode(),
                [record.queue_offset for record in rows],
            )
            for name, rows in queues.items()
        }
        first = self._first_needed()
        if first is not None and queues:
            first = max(first, min(row.phys_offset for rows in queues.values() for row in rows))
            omitted |= await self._search(first, list(searches.values()))
        pops: dict[int, list[OpenPop]] = {}
        for name, rows in queues.items():
            for record in rows:
                pops[record.phys_offset] = [
                    _open_pop(record, checkpoint.group, checkpoint.pop_ms, until_ms)
                    for checkpoint in searches[name].unacknowledged(record.queue_offset)
                    if (until_ms := self._open_until_ms(checkpoint, record.queue_offset))
                ] + self._orderly(record)
        return pops, omitted

    def _orderly(self, record: Record) -> list[OpenPop]:
        pops = []
        for queue, info in self._orders.group_queues():
            is_queue = (queue.topic, queue.queue_id) == (record.topic, record.queue_id)
            if is_queue and record.queue_offset in info.open:
                until_ms = info.visible_ms.get(record.queue_offset, info.pop_ms + info.invisible_ms)
                pop = _open_pop(record, queue.group, info.pop_ms, until_ms)
                pop.attempt += info.consumed.get(record.queue_offset, 0)
                pops.append(pop)
        return pops

    async def _search(self, first: int, searches: Sequence[QueueSearch]) -> bool:
        """Search the timers from a log offset on; return whether older ones were omitted."""
        pieces, omitted = await self._units_from(first)
        for units, offset in reversed(pieces):  # a checkpoint is before its acknowledgements
            try:
                data = self._store.gather(TIMER_TOPIC, 0, offset, units)
            except StoreError:  # a record cannot be read
                omitted = True
                continue
            starts = np.cumsum(units["size"]) - units["size"]
            for search in searches:
                for position in search.positions(data):
                    row = int(np.searchsorted(starts, position, "right")) - 1
                    self._add(search, int(units[row]["phys_offset"]))
            await asyncio.sleep(0)
        return omitted

    async def _units_from(self, first: int) -> tuple[list[tuple[Rows, int]], bool]:
        """Return (units of checkpoints and acknowledgements, newest piece first; omitted).

        Each piece has the queue offset of the unit with index 0.
        """
        low, end = self._store.queue_bounds(TIMER_TOPIC, 0)
        last = max(low, end - TIMERS_MAX)
        pieces: list[tuple[Rows, int]] = []
        while end > last:
            begin = max(last, end - PIECE_UNITS)
            units = self._store.units(TIMER_TOPIC, 0, begin, end - begin)
            while 0 < units.size < end - begin:  # the piece ends in another file
                position = begin + units.size
                more = self._store.units(TIMER_TOPIC, 0, position, end - position)
                if not more.size:
                    break
                more["index"] += units.size
                units = np.concatenate([units, more])
            newer = units["phys_offset"] >= first
            revive = units[newer & np.isin(units["tags_code"], TAGS)]
            if revive.size:
                pieces.append((revive, begin))
            if not newer.all():
                return pieces, False
            end = begin
            await asyncio.sleep(0)
        return pieces, last > low

    def _add(self, search: QueueSearch, log_offset: int) -> None:
        try:
            record = self._store.read_record(log_offset)
        except StoreError:
            return
        if record.properties.get("REAL_TOPIC") == self._revive_topic:
            search.add(record, self._identity.broker_name)


def _open_pop(record: Record, group: str, popped_ms: int, until_ms: int) -> OpenPop:
    return OpenPop(
        group=group,
        topic=record.topic,
        queue_id=record.queue_id,
        popped_ms=popped_ms,
        invisible_until_ms=until_ms,
        attempt=record.reconsume_times + 1,
    )
