"""Search for pending timers by topic and due time, piece by piece, for bulk decisions.

    queue   timers that are not enqueued yet; a later piece may contain them again
    wheel   near stage and slots, as a list walks them: `timer_store.pending.walk`

The queue comes first, since timers move from it to the wheel: a timer that is enqueued meanwhile is
returned twice rather than not at all. A piece reads records only for its own messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from delayed_delivery.pending import HitQuery, PendingPiece
from delayed_delivery.pending_search import piece_of
from timer_store.layout import Rows
from timer_store.pending.walk import Cursor, Query, Walk

if TYPE_CHECKING:
    from timer_store.store import TimerStore

QUEUE_MARK: Final = "q"
PIECE_UNITS: Final = 4_096  # maximum units of the wheel read for one piece; a slot may have more


def search_timers(timers: TimerStore, query: HitQuery, cursor: str) -> PendingPiece:
    """Return the next pending timers of a search.

    Raises:
        ValueError: The text is not a cursor.
    """
    if not cursor and (timers.enqueue.lag_units or timers.transfers.incomplete):
        end = timers.fetch.bounds()[1]
        return _in_queue(timers, query, 0, timers.position.queue_offset, end)
    if not cursor.startswith(QUEUE_MARK):
        return _in_wheel(timers, query, cursor)
    part, offset, end = map(int, cursor.removeprefix(QUEUE_MARK).split("."))
    return _in_queue(timers, query, part, offset, end)


def _in_queue(
    timers: TimerStore, query: HitQuery, part: int, offset: int, end: int
) -> PendingPiece:
    """Return the timers of the next units: part 0 is the timer queue, n are transfers of level n.

    Args:
        end: Offset after the last unit of the part.
    """
    if part == 0:
        rows, offset = timers.fetch.fetch_queue(offset, min(query.count_max, max(end - offset, 0)))
    else:
        first, offset = offset, min(offset + query.count_max, end)
        rows = timers.transfers.owned_rows(part, first, offset)[0]
    while offset >= end:
        owned = timers.transfers.owned if timers.transfers.incomplete else None
        part = min((number for number in owned.pieces if number > part), default=0) if owned else 0
        if owned is None or not part:
            break
        ranges = owned.ranges(part)
        offset, end = min((r[0] for r in ranges), default=0), max((r[1] for r in ranges), default=0)
    following = f"{QUEUE_MARK}{part}.{offset}.{end}" if offset < end else str(Cursor())
    rows = rows[(rows["due_ms"] >= query.from_ms) & (rows["due_ms"] < query.until_ms)]
    rows = rows[timers.decisions.is_pending(rows)]
    return _piece(timers, query, rows, following, may_repeat=True)


def _in_wheel(timers: TimerStore, query: HitQuery, cursor: str) -> PendingPiece:
    walk = Walk(
        timers,
        Query(
            topic=query.topic,
            from_ms=query.from_ms,
            to_ms=query.until_ms,
            limit=query.count_max,
            cursor=Cursor.parse(cursor),
        ),
        units_max=PIECE_UNITS,
    )
    rows = walk.run()
    unread = rows["due_ms"] == 0  # units of Apache's brokers may lack it
    if unread.any():
        rows["due_ms"][unread] = timers.records.read(rows["phys_offset"][unread])["due_ms"]
        rows = rows[(rows["due_ms"] >= query.from_ms) & (rows["due_ms"] < query.until_ms)]
    following = None if walk.next_cursor is None else str(walk.next_cursor)
    return _piece(timers, query, rows, following, damage=walk.damage)


def _piece(
    timers: TimerStore,
    query: HitQuery,
    rows: Rows,
    following: str | None,
    *,
    may_repeat: bool = False,
    damage: list[str] | None = None,
) -> PendingPiece:
    return piece_of(
        timers.store,
        query,
        np.ascontiguousarray(rows["phys_offset"]),
        np.ascontiguousarray(rows["due_ms"]),
        following,
        may_repeat=may_repeat,
        damage=damage or [],
    )
