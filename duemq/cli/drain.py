"""`duemq drain`: stop the sends to a broker before maintenance, and wait until its work is done.

brokerPermission = 4     routes name other brokers for sends
wait                     for deliveries that are due soon, and for groups with members
report                   what is still pending; it stays in the store, and is delivered when due
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from duemq.cli.cluster import view_or_empty
from duemq.cli.exits import Exit, fail
from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import print_json, print_table
from duemq.cli.times import duration_text, parse_time
from duemq.client.admin import Admin
from duemq.client.admin.cluster import BrokerMember
from duemq.net.view_names import LEVELS_VIEW, TIMERS_VIEW
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

PERMISSION: Final = "brokerPermission"
READ, READ_AND_WRITE = 4, 6
VIEWS: Final = (LEVELS_VIEW, TIMERS_VIEW)
POLL_S: Final = 1.0
COLUMNS: Final = ("broker", "sends", "#pending", "next due (UTC)", "#lag", "state")
UNDO: Final = "let it accept sends again after its restart: duemq drain --undo"


@dataclass(frozen=True, slots=True)
class DrainState:
    """What a broker still has to do.

    Attributes:
        pending: Pending messages; None: the broker does not report them.
        next_due_ms: Earliest due time of a pending message.
        lag: Messages that groups with members have not consumed.
        drained: Whether nothing is due soon, and nothing is left to consume.
    """

    broker: str
    accepts_sends: bool
    pending: int | None
    next_due_ms: int | None
    lag: int
    drained: bool


def drain(target: Target, broker_name: str, *, soon: str, timeout: str, undo: bool) -> None:
    """Drain a broker, or let it accept sends again.

    Args:
        broker_name: Name of the broker; empty: the only one.
        soon: Span; the command waits for messages that are due within it.
        timeout: Maximum span of the wait.
    """
    soon_ms, timeout_ms = (_span_ms(text) for text in (soon, timeout))
    state = asyncio.run(_drain(target, broker_name, soon_ms, timeout_ms, undo=undo))
    if target.as_json:
        print_json(asdict(state))
    else:
        print_table("", COLUMNS, [_row(state)], optional=("next due (UTC)",))
    if undo:
        return
    if not state.drained:
        waited = duration_text(timeout_ms)
        fail(f"{state.broker} is not drained after {waited}; its sends stay off", Exit.FOUND_FAULT)
    if not target.as_json:
        print(f"drained; {UNDO}")


def _span_ms(text: str) -> int:
    try:
        return parse_time(f"+{text}", 0)
    except UsageError:
        raise UsageError(f"{text}: must be a span such as 30s or 10m") from None


async def _drain(
    target: Target, broker_name: str, soon_ms: int, timeout_ms: int, *, undo: bool
) -> DrainState:
    clock = SystemClock()
    end_s = clock.monotonic_s() + timeout_ms / 1_000
    async with target.admin() as admin:
        masters = await admin.masters([broker_name] if broker_name else [])
        if len(masters) > 1:
            names = ", ".join(master.name for master in masters)
            raise UsageError(f"there are several brokers: name one of them, {names}")
        [master] = masters
        permission = READ_AND_WRITE if undo else READ
        await admin.update_broker_config(master.address, {PERMISSION: permission})
        while True:
            state = await _state(admin, master, soon_ms)
            if undo or state.drained or clock.monotonic_s() >= end_s:
                return state
            await asyncio.sleep(POLL_S)


async def _state(admin: Admin, master: BrokerMember, soon_ms: int) -> DrainState:
    config = await admin.broker_config(master.address)
    views = [view for name in VIEWS if (view := await view_or_empty(admin, master.address, name))]
    counts = [view["pending"] for view in views]
    due = [due_ms for view in views if (due_ms := _next_due_ms(view)) is not None]
    now_ms = max((_integer(view["now_ms"]) for view in views), default=0)
    lag = await _lag(admin, master)
    return DrainState(
        broker=master.name,
        accepts_sends=config.get(PERMISSION) != str(READ),
        pending=sum(map(_integer, counts)) if counts else None,
        next_due_ms=min(due, default=None),
        lag=lag,
        drained=not lag and all(due_ms > now_ms + soon_ms for due_ms in due),
    )


def _next_due_ms(view: Mapping[str, object]) -> int | None:
    """Return the earliest due time of levels or timers."""
    rows = view.get("levels")
    rows = rows if isinstance(rows, list) else [view]
    due = (row["next_due_ms"] for row in rows)
    return min((_integer(due_ms) for due_ms in due if due_ms is not None), default=None)


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


async def _lag(admin: Admin, master: BrokerMember) -> int:
    """Return the lag, at one broker, of the groups that have members."""
    states = [await admin.group_state(info) for info in await admin.groups()]
    return sum(
        progress.lag
        for state in states
        if state.members
        for progress in state.queues
        if master.broker_name in ("", progress.queue.broker_name)
    )


def _row(state: DrainState) -> tuple[object, ...]:
    return (
        state.broker,
        "on" if state.accepts_sends else "off",
        "unknown" if state.pending is None else f"{state.pending:,}",
        table_time(state.next_due_ms)[:19],
        f"{state.lag:,}",
        "drained" if state.drained else "busy",
    )
