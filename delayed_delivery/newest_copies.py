"""Newest copies of pending messages, whichever component owns them.

    level message --move--> timer --move, compaction--> timer
    timer with a level --rollback of a migration--> level message

A copy is a record in the queue of the timers or of a level, with the unique key of its message; it
names the record that it replaces as its origin. A marker names an origin, too, and is no copy.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from delayed_delivery.markers import MARKER
from delayed_delivery.pending import Offsets
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.index.key_search import HIT_UNIQUE, frames, search

if TYPE_CHECKING:
    from message_store.store import MessageStore

COPY_TOPICS: Final = (TIMER_TOPIC, SCHEDULE_TOPIC)
RECORDS_PER_TURN: Final = 64  # records read between two turns of the event loop


async def newest_copies(store: MessageStore, offsets: Offsets) -> Offsets:
    """Return the log offset of the newest copy of each message; its own without a copy.

    A message without a unique key has no copies that can be found.

    Args:
        offsets: (n,) i8: log offsets of records.

    Raises:
        StoreError: The key index is switched off or too far behind the log, or too many
            messages have these keys.
    """
    keys = set[str]()
    for count, offset in enumerate(offsets.tolist(), 1):
        keys.add(_properties(store, offset)["UNIQ_KEY"])
        if count % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
    keys.discard("")
    if not keys:
        return offsets
    matches = await search(store, COPY_TOPICS, sorted(keys))
    copies = await _by_origin(store, matches.offsets[matches.hits == HIT_UNIQUE])
    newest = offsets.copy()
    for index, offset in enumerate(offsets.tolist()):
        while offset in copies:
            offset = copies[offset]
        newest[index] = offset
    return newest


async def _by_origin(store: MessageStore, offsets: Offsets) -> dict[int, int]:
    """Return the log offsets of the copies among some records, by that of their origin."""
    copies: dict[int, int] = {}
    origins = -(frames(store, offsets)["prepared_offset"] + 1)
    is_later = (origins >= 0) & (origins < offsets)  # a copy is after its origin: there is no cycle
    pairs = zip(offsets[is_later].tolist(), origins[is_later].tolist(), strict=True)
    for count, (offset, origin) in enumerate(pairs, 1):
        if not _properties(store, offset)[MARKER]:
            copies[origin] = offset
        if count % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
    return copies


def _properties(store: MessageStore, offset: int) -> dict[str, str]:
    """Return two properties of a record, empty ones if it cannot be read."""
    try:
        properties = store.read_record(offset).properties
    except RecordUnreadable:
        properties = {}
    return {name: properties.get(name, "") for name in ("UNIQ_KEY", MARKER)}
