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

from delayed_delivery.steps import Steps
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.ranges import distinct
from timer_store.enqueue.due_time import due_ms_of, number_of
from timer_store.layout import Row, Rows
from timer_store.pending.listed_rows import first_rows, listed_rows
from timer_store.pending.walk import Cursor, Query, Walk

if TYPE_CHECKING:
    from timer_store.store import TimerStore

LIMIT_MAX: Final = 1_000
KEY_RECORDS_MAX: Final = 1_000
DESCRIBED_PER_STEP: Final = 64
CLOCK_SLACK_MS: Final = 86_400_000  # tolerance for records stored by a clock ahead of this one


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
    """Return the next timers of a list, at most `limit`, in steps."""
    if query.key:
        return (yield from _by_key(timers, query))
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


def _by_key(timers: TimerStore, query: Query) -> Steps[Page]:
    """Return the pending timers with a key, found through the key index."""
    end_ms = timers.clock.now_ms() + CLOCK_SLACK_MS
    topics = [TIMER_TOPIC, *([SCHEDULE_TOPIC] if timers.transfers.owned else [])]
    offsets = [
        np.array(timers.store.query_keys(topic, query.key, KEY_RECORDS_MAX, 0, end_ms), np.int64)
        for topic in topics
    ]
    timed = timers.records.read(distinct(*offsets))
    pending = timers.decisions.is_pending(timed)
    rows = listed_rows(timed[pending], staged=False)
    rows["staged"] = timers.stage.contains(rows["phys_offset"], rows["due_ms"])
    rows = first_rows(rows, max(int(rows.size), 1))
    yield
    shown = yield from _described(timers, rows)
    fits = [timer for timer in shown if query.includes(timer)]
    page = fits[query.skip : query.skip + query.limit]
    return Page(page, min(query.skip, len(fits)), None, [])


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
