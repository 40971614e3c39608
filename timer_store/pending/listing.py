"""List of pending timers in due order, page by page, without loading all of them.

`timer_store.pending.walk` finds the timers of a page; records are read only for these.

Timers that are enqueued or delivered between two pages may or may not be listed; all others are
returned once. (Exceptions are timers without a due time in their unit, and timers that were
enqueued before timerRollWindowSlot was changed: they are listed by their current slot, and again
if they roll between two pages. Timers that compaction copies between two pages are listed again if
they are due in the millisecond of the last timer of the page: a copy has a later log offset.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from delayed_delivery.steps import Steps, in_turns
from duemq_common.errors import RecordUnreadable
from timer_store.enqueue.due_time import due_ms_of, number_of
from timer_store.layout import Row, Rows
from timer_store.pending.listed_rows import LISTED, first_rows
from timer_store.pending.lookup import PendingTimers
from timer_store.pending.walk import Cursor, Query, Walk

if TYPE_CHECKING:
    from timer_store.store import TimerStore

LIMIT_MAX: Final = 1_000
DESCRIBED_PER_STEP: Final = 64


class Page(Struct, frozen=True):
    """Page of a list.

    Attributes:
        timers: Plain data of each timer.
        skipped: Number of timers of `Query.skip` that were skipped.
        cursor: Position of the next page, None at the end.
        damage: Unreadable parts of the timer log.
    """

    timers: list[dict[str, object]]
    skipped: int
    cursor: Cursor | None
    damage: list[str]


def list_timers(timers: TimerStore, query: Query) -> Steps[Page]:
    """Return the next timers of a list without a key, at most `limit`, in steps."""
    assert not query.key
    walk = Walk(timers, query)
    rows = walk.run()
    timers.store.prefetch(rows["phys_offset"])
    yield
    shown = yield from _described(timers, rows)
    return Page(
        [t for t in shown if query.includes(t)], walk.skipped, walk.next_cursor, walk.damage
    )


def next_due_ms(timers: TimerStore) -> int | None:
    """Return the due time of the next timer; None without one, or if the first call found none."""
    staged_ms = timers.stage.next_due_ms
    if staged_ms is not None:
        return staged_ms
    listed = Walk(timers, Query(limit=1)).run()
    return int(listed[0]["due_ms"]) or None if listed.size else None


async def list_by_key(timers: TimerStore, query: Query) -> Page:
    """Return the next timers with a key, at most `limit`; all of them are found at each page.

    Raises:
        StoreError: Keys cannot be looked up now.
    """
    pending = await PendingTimers(timers).by_key(query.topic, [query.key], unique=False)
    pending = pending.within(query.from_ms, query.to_ms)
    rows = np.zeros(pending.offsets.size, LISTED)
    rows["due_ms"], rows["phys_offset"] = pending.due_ms, pending.offsets
    last_ms, last_offset = query.cursor.due_ms, query.cursor.phys_offset
    is_later = (rows["due_ms"] == last_ms) & (rows["phys_offset"] > last_offset)
    rows = first_rows(rows[(rows["due_ms"] > last_ms) | is_later], query.skip + query.limit + 1)
    skipped, rows = min(query.skip, int(rows.size)), rows[query.skip :]
    page = rows[: query.limit]
    page["staged"] = timers.stage.contains(page["phys_offset"], page["due_ms"])
    shown = await in_turns(_described(timers, page))
    if rows.size == page.size:
        return Page(shown, skipped, None, [])
    last_ms, last_offset = int(page[-1]["due_ms"]), int(page[-1]["phys_offset"])
    return Page(shown, skipped, Cursor(due_ms=last_ms, phys_offset=last_offset), [])


def _described(timers: TimerStore, rows: Rows) -> Steps[list[dict[str, object]]]:
    """Return the data of timers, some in each step."""
    shown: list[dict[str, object]] = []
    for row in rows:
        shown.append(describe(timers, row))
        if len(shown) % DESCRIBED_PER_STEP == 0:
            yield
    return shown


def describe(timers: TimerStore, row: Row) -> dict[str, object]:
    """Return the data of one timer and its record for an operator."""
    phys_offset, due_ms = int(row["phys_offset"]), int(row["due_ms"])
    shown: dict[str, object] = {
        "due_ms": due_ms or None,
        "staged": bool(row["staged"]),
        "commit_log_offset": phys_offset,
        "topic": None,
    }
    try:
        record = timers.store.read_record(phys_offset)
    except RecordUnreadable as error:
        return {**shown, "unreadable": str(error)}
    properties = record.properties
    if not due_ms:
        shown["due_ms"] = due_ms_of(properties, record.store_ms, timers.config.precision_ms)
    return {
        **shown,
        "topic": properties.get("REAL_TOPIC"),
        "queue_id": number_of(properties.get("REAL_QID")),
        "unique_key": properties.get("UNIQ_KEY", ""),
        "keys": properties.get("KEYS", ""),
        "tag": properties.get("TAGS", ""),
        "stored_ms": record.store_ms,
        "body_bytes": len(record.body),
        "record_bytes": record.total_size,
        "timer_queue_offset": record.queue_offset,
    }
