"""Views of the timer store as plain data: for `duemq timers`, the console and brokerStatus.

Each view is bounded work on the event loop's thread, in steps if it is long. Long lists and
forecasts return the position to continue from (`cursor`, `pos`); the caller joins the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from delayed_delivery.forecast_bins import BINS, MINUTE_MS, Span, forecast_response
from delayed_delivery.outcome import CLASSES, DeliveryStats, Rate
from delayed_delivery.plugin import ParameterizedView, referral_text
from delayed_delivery.steps import Steps
from delayed_delivery.view_fields import number
from duemq_common.codes import ResponseCode
from duemq_common.config import INT_MAX
from duemq_common.errors import RequestError
from timer_store import layout
from timer_store.pending.forecast import forecast, of_slots
from timer_store.pending.listing import LIMIT_MAX, Page, list_by_key, list_timers, next_due_ms
from timer_store.pending.walk import LONG_MAX, Cursor, Query
from timer_store.store import TimerStore

WORK: Final = "has the timers"
RATE_SECONDS: Final = (1, 10, 60)
FULLEST: Final = 5
TIME_MS_MAX: Final = layout.DUE_MS_MAX


def admin_views(
    timers_of: Callable[[], TimerStore | None], master_of: Callable[[], str | None]
) -> Mapping[str, Callable[[], object]]:
    """Return the views of a timer store that may not run yet.

    Args:
        master_of: Returns `host:port` of a replica's master, empty if it is unknown; None on a
            master.
    """

    def running() -> TimerStore:
        timers = timers_of()
        if timers is None:
            master = master_of()
            reason = (
                "the timer store does not run" if master is None else referral_text(master, WORK)
            )
            raise RequestError(ResponseCode.SYSTEM_ERROR, reason)
        return timers

    return {
        "summary": lambda: summary(running()),
        "list": ParameterizedView(lambda fields: list_view(running(), fields)),
        "forecast": ParameterizedView(lambda fields: forecast_view(running(), fields)),
        "history": lambda: running().dequeue.history.view(running().clock.now_ms()),
        "runtime": lambda: {} if timers_of() is None else runtime_view(running()),
    }


def summary(timers: TimerStore) -> Steps[dict[str, object]]:
    """Return the state of the timer store: counts, positions, delivery."""
    now_ms = timers.clock.now_ms()
    precision_ms = timers.config.precision_ms
    minute_ms = now_ms // MINUTE_MS * MINUTE_MS
    slots = yield from slots_view(timers)
    soon = yield from of_slots(timers, Span(minute_ms, MINUTE_MS, BINS))
    return {
        "now_ms": now_ms,
        "pending": timers.counts.total,
        "topics": timers.counts.by_topic(),
        "next_due_ms": next_due_ms(timers),
        "enqueue": enqueue_view(timers, now_ms),
        "dequeue": dequeue_view(timers, now_ms),
        **stats_view(timers.stats, now_ms),
        **event_counts(timers),
        "slots": slots,
        "compaction": compaction_view(timers),
        "position": {
            "read_ms": timers.position.read_ms,
            "staged_ms": timers.position.staged_ms,
            "staged": len(timers.stage),
            "queue_offset": timers.position.queue_offset,
            "timer_log_start": timers.units.log.min_pos,
            "timer_log_end": timers.units.log.end,
            "precision_ms": precision_ms,
        },
        "per_minute": {"from_ms": minute_ms, "counts": soon[1:-1].tolist()},
    }


def enqueue_view(timers: TimerStore, now_ms: int) -> dict[str, object]:
    """Return the state of enqueueing: timers in the queue, their lag, the blocking reason."""
    return {
        "lag_units": timers.enqueue.lag_units,
        "lag_ms": enqueue_lag_ms(timers, now_ms),
        "enqueued": timers.enqueue.enqueued,
        "per_second": rates(timers.enqueue.rate, now_ms),
        "blocked_by": timers.enqueue.blocked_by,
        "stopped": timers.config.stop_enqueue,
    }


def dequeue_view(timers: TimerStore, now_ms: int) -> dict[str, object]:
    """Return the state of delivery: overdue timers, their lag, the refusal."""
    return {
        "lag_units": overdue(timers, now_ms),
        "lag_ms": dequeue_lag_ms(timers, now_ms),
        "per_second": rates(timers.stats.rate, now_ms),
        "refusal": timers.dequeue.refusal,
        "stopped": timers.config.stop_dequeue,
    }


def stats_view(stats: DeliveryStats, now_ms: int) -> dict[str, object]:
    """Return the counts of deliveries since the start of the process, and their lateness."""
    return {
        "delivered": stats.delivered,
        "delivered_per_second": stats.rate.per_second(now_ms),
        "lost": stats.lost,
        "refused": stats.refused,
        "quarantined": stats.by_reason(),
        "lateness_ms": {
            name: late.as_dict() | {"p999": late.quantile_ms(0.999)}
            for name, late in zip(CLASSES, stats.lateness, strict=True)
        },
    }


def event_counts(timers: TimerStore) -> dict[str, int]:
    """Return the counts of other events since the start of the process."""
    decisions = timers.decisions
    return {
        "rolled": timers.dequeue.rolled,
        "cancelled": decisions.cancelled,
        "moved": decisions.moved,
        "fired": decisions.fired,
        "broken": timers.non_timers.quarantined,
    }


def compaction_view(timers: TimerStore) -> dict[str, object]:
    """Return the state of compaction, and the blocking reason."""
    compaction = timers.compaction
    return {
        "running": compaction.running,
        "progress": compaction.progress,
        "copied": compaction.copied,
        "copied_bytes": compaction.copied_bytes,
        "freed_bytes": compaction.freed_bytes,
        "blocked_by": compaction.blocked_by.value,
        "why": compaction.reason,
        "timer_log_files_removed": timers.log_cleaning.removed_files,
    }


def rates(rate: Rate, now_ms: int) -> dict[str, float]:
    """Return events per second over the last 1, 10 and 60 s."""
    return {str(n): rate.per_second(now_ms, seconds=n) for n in RATE_SECONDS}


def enqueue_lag_ms(timers: TimerStore, now_ms: int) -> int:
    """Return the age in the queue of the next timer to be enqueued, in ms; 0 without one."""
    first = timers.state.first_in_queue()
    return 0 if first is None else max(now_ms - int(timers.store.store_ms(first)), 0)


def dequeue_lag_ms(timers: TimerStore, now_ms: int) -> int:
    """Return the time since the next timer was due, in ms; 0 if none is due."""
    due_ms = first_due_ms(timers)
    return max(now_ms - due_ms, 0) if due_ms is not None else 0


def first_due_ms(timers: TimerStore) -> int | None:
    """Return the due time of the next timer, or the start of its slot if it is not staged."""
    due_ms = timers.stage.next_due_ms
    if due_ms is not None:
        return due_ms
    staged_ms = timers.position.staged_ms
    end_ms = staged_ms + layout.WHEEL_SLOTS * timers.config.precision_ms
    slot_ms = timers.units.wheel.next_live(staged_ms, end_ms)
    return None if slot_ms is None else slot_ms + 1


def overdue(timers: TimerStore, now_ms: int) -> int:
    """Return the number of due timers that are not delivered."""
    first_ms = first_due_ms(timers)
    if first_ms is None or first_ms > now_ms:
        return 0
    staged = sum(int((rows["due_ms"] <= now_ms).sum()) for rows in timers.stage.pending_rows())
    end_ms = now_ms - timers.config.precision_ms
    return staged + timers.units.wheel.total(timers.position.staged_ms, end_ms)


def slots_view(timers: TimerStore) -> Steps[dict[str, Any]]:
    """Return the counts of the slots that are not staged."""
    limit = timers.config.slot_timers_max
    wheel = timers.units.wheel
    counts = yield from wheel.fullest(timers.position.staged_ms, FULLEST, limit)
    used, congested, fullest = counts
    return {
        "used": used,
        "congested": congested,
        "limit": None if limit == INT_MAX else limit,
        "fullest": [
            {"from_ms": tick * timers.config.precision_ms, "count": count}
            for count, tick in fullest.tolist()
        ],
    }


def runtime_view(timers: TimerStore) -> dict[str, str]:
    """Return the entries of brokerStatus. Source: AdminBrokerProcessor.prepareRuntimeInfo"""
    now_ms = timers.clock.now_ms()
    return {
        "timerReadBehind": str(dequeue_lag_ms(timers, now_ms) // 1_000),
        "timerOffsetBehind": str(timers.enqueue.lag_units),
        "timerCongestNum": str(timers.counts.total),
        "timerEnqueueTps": str(timers.enqueue.rate.per_second(now_ms)),
        "timerDequeueTps": str(timers.stats.rate.per_second(now_ms)),
    }


# -- views with arguments -----------------------------------------------------------------------


def list_view(
    timers: TimerStore, fields: Mapping[str, str]
) -> Steps[dict[str, object]] | Coroutine[None, None, dict[str, object]]:
    """Return the next part of a list; with a key, a coroutine that looks it up.

    Args:
        fields: topic, key, from_ms, to_ms, skip, limit, cursor; each may be missing.
    Raises:
        RequestError: A field is invalid.
    """
    try:
        cursor = Cursor.parse(fields.get("cursor", ""))
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    query = Query(
        topic=fields.get("topic", ""),
        key=fields.get("key", ""),
        from_ms=number(fields, "from_ms", 0, TIME_MS_MAX),
        to_ms=number(fields, "to_ms", LONG_MAX, LONG_MAX),
        skip=number(fields, "skip", 0, INT_MAX),
        limit=max(number(fields, "limit", 20, LIMIT_MAX), 1),
        cursor=cursor,
    )
    return _of_key(timers, query) if query.key else _of_slots(timers, query)


async def _of_key(timers: TimerStore, query: Query) -> dict[str, object]:
    return _page_view(timers, await list_by_key(timers, query))


def _of_slots(timers: TimerStore, query: Query) -> Steps[dict[str, object]]:
    return _page_view(timers, (yield from list_timers(timers, query)))


def _page_view(timers: TimerStore, page: Page) -> dict[str, object]:
    return {
        "now_ms": timers.clock.now_ms(),
        "timers": page.timers,
        "skipped": page.skipped,
        "cursor": None if page.cursor is None else str(page.cursor),
        "damage": page.damage,
    }


def forecast_view(timers: TimerStore, fields: Mapping[str, str]) -> Steps[dict[str, object]]:
    """Return the bins of a forecast, or corrections to them.

    Args:
        fields: from_ms, width_ms, count; pos of the previous response.
    Raises:
        RequestError: A field is invalid.
    """
    now_ms, precision_ms = timers.clock.now_ms(), timers.config.precision_ms
    span = Span.of(fields, now_ms, time_ms_max=TIME_MS_MAX, precision_ms=precision_ms)
    pos = number(fields, "pos", 0, LONG_MAX) if fields.get("pos") else None
    bins, following = yield from forecast(timers, span, pos)
    pending = timers.counts.total
    return forecast_response(span, bins, now_ms=now_ms, pending=pending, pos=following)
