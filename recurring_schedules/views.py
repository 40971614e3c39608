"""Admin views of schedules: pages of the list, and one schedule with its next occurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from delayed_delivery.plugin import ParameterizedView
from delayed_delivery.steps import Steps
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from recurring_schedules.definition import InvalidDefinition
from recurring_schedules.journal import ScheduleRecord
from recurring_schedules.occurrences import StepWork, search_after
from recurring_schedules.table import IS_DELETED, ScheduleTable

if TYPE_CHECKING:
    from message_store.store import MessageStore

PAGE_MAX: Final = 1_000
RUNS_MAX: Final = 100
SCHEDULES_PER_STEP: Final = 64
Parts = Callable[[], "tuple[MessageStore, ScheduleTable, Clock]"]


def admin_views(parts: Parts) -> dict[str, Callable[[], object]]:
    """Return the views by name; `parts` raises RequestError while no schedules run."""
    return {
        "list": ParameterizedView(lambda fields: _list(*parts(), fields)),
        "show": ParameterizedView(lambda fields: _show(*parts(), fields)),
    }


def _list(
    store: MessageStore, table: ScheduleTable, clock: Clock, fields: Mapping[str, str]
) -> Steps[dict[str, object]]:
    """Return a page of schedules, and the field `after` of the next page; -1: the last one."""
    after, count = _number(fields, "after", -1), _number(fields, "count", 100)
    count = min(max(count, 1), PAGE_MAX)
    now_ms = clock.now_ms()
    live = np.flatnonzero(table.filled["state"][after + 1 :] != IS_DELETED) + after + 1
    rows, topic = [], fields.get("topic", "")
    for index, slot in enumerate(live[:count].tolist()):
        if index % SCHEDULES_PER_STEP == SCHEDULES_PER_STEP - 1:
            yield
        try:
            record = table.record(store, slot)
        except RecordUnreadable:
            continue
        if not topic or record.definition.topic == topic:
            rows.append(as_plain(record, now_ms))
    return {
        "counts": table.counts(),
        "schedules": rows,
        "after": int(live[count - 1]) if live.size > count else -1,
    }


def _show(
    store: MessageStore, table: ScheduleTable, clock: Clock, fields: Mapping[str, str]
) -> Steps[dict[str, object]]:
    name = fields.get("schedule", "")
    slot = table.find(name)
    if slot < 0:
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"there is no schedule {name[:200]!r}")
    record, runs = table.record(store, slot), list[int]()
    planned_ms: int | None = clock.now_ms()
    step = StepWork()
    count = min(_number(fields, "runs", 5), RUNS_MAX)
    with suppress(InvalidDefinition):  # the note of the record has the reason
        while planned_ms is not None and len(runs) < count:
            planned_ms = yield from search_after(record.definition, planned_ms, step)
            runs += [] if planned_ms is None else [planned_ms]
    return {**as_plain(record, clock.now_ms()), "runs": runs}


def as_plain(record: ScheduleRecord, now_ms: int) -> dict[str, object]:
    """Return a record and the present time as plain data."""
    plain: dict[str, object] = msgspec.to_builtins(record)
    return plain | {
        "state": record.state,
        "revision": record.revision,
        "planned_ms": record.pending_ms(now_ms),
        "next_ms": record.next_ms,
        "note": record.note,
        "now_ms": now_ms,
    }


def _number(fields: Mapping[str, str], name: str, default: int) -> int:
    text = fields.get(name, str(default))
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"the field {name} is not a number")
    return int(text)
