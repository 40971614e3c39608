"""`duemq timers list`: pages of pending timers, earliest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duemq.cli.exits import Exit, fail
from duemq.cli.options import Target, TimerSelection
from duemq.cli.output import console, heading, print_json, printable
from duemq.cli.timers_show import list_row, timers_table
from duemq.cli.times import parse_time
from duemq.net.view_names import TIMERS_LIST_VIEW
from duemq_common.clock import SystemClock

if TYPE_CHECKING:
    from duemq.client.admin import Admin

REQUEST_TIMERS_MAX = 1_000  # timers per request


def _fields(selection: TimerSelection, now_ms: int) -> dict[str, object]:
    """Return the fields of the request."""
    fields: dict[str, object] = {"topic": selection.topic, "key": selection.key}
    if selection.from_time:
        fields["from_ms"] = parse_time(selection.from_time, now_ms)
    if selection.to_time:
        fields["to_ms"] = parse_time(selection.to_time, now_ms)
    return fields


def list_timers(selection: TimerSelection, target: Target) -> None:
    """Print one page."""
    now_ms = SystemClock().now_ms()
    shown, more, damage = target.ask(lambda admin: _collect(admin, selection, now_ms))
    if target.as_json:
        print_json(
            {
                "timers": shown,
                "page": selection.page,
                "limit": selection.limit,
                "more": more,
                "damage": damage,
            }
        )
    elif shown or not selection.key:
        rows = [list_row(timer, now_ms) for timer in shown]
        title = f"pending timers, page {selection.page}" + (" (there are more)" if more else "")
        console().print(heading(title))
        console().print(timers_table(rows))
    if not target.as_json:
        for reason in damage:
            console(stderr=True).print(printable(reason), markup=False, soft_wrap=True)
    if selection.key and not shown:
        fail(f"no pending timer has the key {selection.key}", Exit.FOUND_FAULT)


async def _collect(
    admin: Admin, selection: TimerSelection, now_ms: int
) -> tuple[list[dict[str, object]], bool, list[str]]:
    """Return (timers of the page, whether there are more, damage) of all brokers."""
    before, fields = (selection.page - 1) * selection.limit, _fields(selection, now_ms)
    brokers = await admin.masters()
    skip = before if len(brokers) == 1 else 0
    timers: list[dict[str, object]] = []
    damage: list[str] = []
    for broker in brokers:
        part, faults = await _fetch(
            admin, broker.address, fields, skip, before + selection.limit + 1 - skip
        )
        timers += [{"broker": broker.name, **timer} for timer in part]
        damage += faults
    timers.sort(key=lambda timer: (timer["due_ms"] or 0, timer["commit_log_offset"]))
    timers = timers[before - skip :]
    return timers[: selection.limit], len(timers) > selection.limit, damage


async def _fetch(
    admin: Admin, address: str, fields: dict[str, object], skip: int, count: int
) -> tuple[list[dict[str, object]], list[str]]:
    """Return `count` timers of one broker after the first `skip`; may take several requests."""
    pages: list[dict[str, object]] = []
    damage: list[str] = []
    cursor = ""
    while True:
        limit = min(count - len(pages), REQUEST_TIMERS_MAX)
        page = await admin.view(
            address, TIMERS_LIST_VIEW, **fields, skip=skip, limit=limit, cursor=cursor
        )
        skip -= page["skipped"]
        pages += page["timers"]
        damage += page["damage"]
        if page["cursor"] is None or len(pages) >= count:
            return pages, damage
        cursor = page["cursor"]
