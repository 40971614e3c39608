"""`duemq drain`: stop the sends to a broker before maintenance, and wait until its work is done.

brokerPermission         its bit for writing is cleared: routes name other brokers for sends
wait                     for deliveries that are due soon, and for groups with members
report                   what is still pending; it stays in the store, and is delivered when due
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from duemq.cli.cluster import view_or_empty
from duemq.cli.exits import Exit, fail
from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import console, notice, print_json, print_table
from duemq.cli.times import duration_text, span_ms
from duemq.client.admin import Admin
from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import Refused
from duemq.net.view_names import LEVELS_VIEW, TIMERS_VIEW
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

PERMISSION: Final = "brokerPermission"
WRITE, READ_AND_WRITE = 2, 6  # bits of the permission
VIEWS: Final = (LEVELS_VIEW, TIMERS_VIEW)
POLL_S: Final = 1.0
COLUMNS: Final = ("broker", "sends", "#pending", "next due (UTC)", "#lag", "state")
BROADCASTING: Final = "BROADCASTING"
LINE_S: Final = 10.0  # between two lines of progress that are not redrawn


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
    run = _Drain(target, soon_ms, timeout_ms, undo=undo)
    try:
        with _progress(shown=not (undo or target.as_json)) as run.report:
            state = asyncio.run(run.run(broker_name))
    except BaseException:
        if run.closed:  # Ctrl-C, or the broker has stopped meanwhile
            notice(f"the sends of {run.closed} stay off; {_remedy(run.closed)}")
        raise
    if target.as_json:
        print_json(asdict(state))
    else:
        print_table("", COLUMNS, [_row(state)], optional=("next due (UTC)",))
    if undo:
        return
    if not state.drained:
        text = (
            f"{state.broker} is not drained after {duration_text(timeout_ms)}; its sends stay off"
        )
        fail(f"{text}; {_remedy(state.broker)}", Exit.FOUND_FAULT)
    if not target.as_json:
        print(f"drained; {_remedy(state.broker)}")


def _remedy(broker: str) -> str:
    return f"let it accept sends again after its restart: duemq drain {broker} --undo"


def _span_ms(text: str) -> int:
    if (span := span_ms(text)) is None:
        raise UsageError(f"{text}: must be a span such as 30s or 10m")
    return span


class _Drain:
    """Run of the command.

    Attributes:
        report: Called with a description of what the command waits for.
        closed: Name of the broker whose sends are off, or may be; empty: none.
    """

    def __init__(self, target: Target, soon_ms: int, timeout_ms: int, *, undo: bool) -> None:
        self._target, self._soon_ms, self._timeout_ms = target, soon_ms, timeout_ms
        self._undo = undo
        self.report: Callable[[str], None] = lambda text: None
        self.closed = ""

    async def run(self, broker_name: str) -> DrainState:
        """Change the permission of a broker, and wait until it is drained; return its state."""
        clock = SystemClock()
        end_s = clock.monotonic_s() + self._timeout_ms / 1_000
        async with self._target.admin() as admin:
            master = await _one_master(admin, broker_name)
            await self._change_permission(admin, master)
            while True:
                state = await _state(admin, master, self._soon_ms)
                if self._undo or state.drained or clock.monotonic_s() >= end_s:
                    return state
                self.report(_description(state))
                await asyncio.sleep(POLL_S)

    async def _change_permission(self, admin: Admin, master: BrokerMember) -> None:
        before = _permission(await admin.broker_config(master.address))
        permission = before | WRITE if self._undo else before & ~WRITE
        if permission == before:
            if not self._undo:
                notice(f"the sends of {master.name} were off before")
            return
        self.closed = "" if self._undo else master.name  # also if no response arrives
        try:
            await admin.update_broker_config(master.address, {PERMISSION: permission})
        except Refused:
            self.closed = ""
            raise


async def _one_master(admin: Admin, broker_name: str) -> BrokerMember:
    masters = await admin.masters([broker_name] if broker_name else [])
    if len(masters) > 1:
        names = ", ".join(master.name for master in masters)
        raise UsageError(f"there are several brokers: name one of them, {names}")
    return masters[0]


def _permission(config: Mapping[str, str]) -> int:
    return int(config.get(PERMISSION, READ_AND_WRITE))


def _description(state: DrainState) -> str:
    due = "" if state.next_due_ms is None else f", next due {table_time(state.next_due_ms)[:19]}"
    return f"{state.broker} is busy: {_count(state.pending)} pending{due}, lag {state.lag:,}"


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on standard error: redrawn, or every `LINE_S`."""
    out = console(stderr=True)
    if not shown:
        yield lambda text: None
    elif out.is_terminal:
        with out.status("draining") as status:
            yield status.update
    else:
        clock, next_s = SystemClock(), 0.0

        def show(text: str) -> None:
            nonlocal next_s
            if clock.monotonic_s() >= next_s:
                notice(text)
                next_s = clock.monotonic_s() + LINE_S

        yield show


async def _state(admin: Admin, master: BrokerMember, soon_ms: int) -> DrainState:
    config = await admin.broker_config(master.address)
    views = [view for name in VIEWS if (view := await view_or_empty(admin, master.address, name))]
    counts = [view["pending"] for view in views]
    due = [due_ms for view in views if (due_ms := _next_due_ms(view)) is not None]
    now_ms = max((_integer(view["now_ms"]) for view in views), default=0)
    lag = await _lag(admin, master)
    return DrainState(
        broker=master.name,
        accepts_sends=bool(_permission(config) & WRITE),
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
    """Return the lag, at one broker, of the groups that have members.

    No other broker gets a request, as it may be away. Members of a broadcasting group have their
    offsets themselves.
    """
    states = [await admin.group_state(info) for info in await admin.groups(brokers=[master.name])]
    return sum(
        progress.lag
        for state in states
        if state.members and state.message_model != BROADCASTING
        for progress in state.queues
    )


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _row(state: DrainState) -> tuple[object, ...]:
    return (
        state.broker,
        "on" if state.accepts_sends else "off",
        _count(state.pending),
        table_time(state.next_due_ms)[:19],
        f"{state.lag:,}",
        "active" if state.accepts_sends else "drained" if state.drained else "busy",
    )
