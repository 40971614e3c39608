"""`duemq top`: rates, pending messages, lateness and lag of replicas, broker by broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from duemq.cli.cluster import OUT_KEYS, rate, view_or_empty
from duemq.cli.exits import Exit
from duemq.cli.options import Target
from duemq.cli.output import console, fitted, heading, print_json, refreshing
from duemq.cli.retrying import watch
from duemq.client.admin import Admin
from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import Refused, Unreachable
from duemq.net.view_names import LEVELS_VIEW, REPLICATION_VIEW, TIMERS_VIEW

INTERVAL_S = 2.0
BROKERS = (
    "broker",
    "#id",
    "role",
    "#in/s",
    "#out/s",
    "#pending",
    "#late p99 ms",
    "#replica lag bytes",
    "error",
)
GROUPS = ("group", "#members", "#out/s", "#lag")
GROUPS_SHOWN = 10
UNKNOWN = "unknown"
NONE = "-"  # nothing to show: no delivery yet, or not a replica


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """State of one broker; None: the broker does not report it."""

    broker: str
    broker_id: int | None
    role: str
    in_rate: float | None = None
    out_rate: float | None = None
    pending: int | None = None
    late_p99_ms: int | None = None
    replica_lag_bytes: int | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """Lag of one consumer group."""

    group: str
    members: int
    rate: float
    lag: int


@dataclass(frozen=True, slots=True)
class Overview:
    """State of all brokers, and the groups with the highest lag."""

    brokers: Sequence[BrokerLoad]
    groups: Sequence[GroupLoad]


def show_top(target: Target, *, once: bool) -> None:
    """Show the state of the brokers, once or until Ctrl-C."""

    async def show_all(admin: Admin) -> None:
        if once:
            overview = await _overview(admin)
            if target.as_json:
                print_json(asdict(overview))
            else:
                console().print(_shown(overview))
            if all(each.failure for each in overview.brokers):
                raise SystemExit(int(Exit.UNREACHABLE))
            return
        with refreshing(as_json=target.as_json) as show:
            await watch(
                target.broker or target.namesrv,
                lambda: _overview(admin),
                lambda overview: show(asdict(overview) if target.as_json else _shown(overview)),
                interval_s=INTERVAL_S,
            )

    target.ask(show_all)


async def _overview(admin: Admin) -> Overview:
    members = await admin.members()
    brokers = await asyncio.gather(*(_broker(admin, member) for member in members))
    groups = []
    try:
        for info in await admin.groups():
            state = await admin.group_state(info)
            groups.append(GroupLoad(info.name, len(state.members), state.rate, state.lag))
    except (Unreachable, Refused) as error:
        if not any(each.failure for each in brokers):
            brokers.append(BrokerLoad("groups", None, "", failure=str(error)))
    groups.sort(key=lambda group: (-group.lag, group.group))
    return Overview(brokers, [group for group in groups if group.lag or group.members])


async def _broker(admin: Admin, member: BrokerMember) -> BrokerLoad:
    role = "master" if member.is_master else "replica"
    try:
        facts = await admin.runtime_info(member.address)
        levels = await view_or_empty(admin, member.address, LEVELS_VIEW)
        timers = await view_or_empty(admin, member.address, TIMERS_VIEW)
        replica = await view_or_empty(admin, member.address, REPLICATION_VIEW)
    except (Refused, Unreachable) as error:
        return BrokerLoad(member.name, member.broker_id, role, failure=str(error))
    return BrokerLoad(
        member.name,
        member.broker_id,
        str(replica.get("role", role)).lower(),
        rate(facts, "putTps"),
        rate(facts, *OUT_KEYS),
        _pending(levels, timers),
        _late_p99_ms(levels, timers),
        None if member.is_master else _integer(replica.get("lagBytes")),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _pending(*views: Mapping[str, object]) -> int | None:
    counts = [count for view in views if (count := _integer(view.get("pending"))) is not None]
    return sum(counts) if counts else None


def _late_p99_ms(levels: Mapping[str, object], timers: Mapping[str, object]) -> int | None:
    """Return the highest lateness of levels and timers."""
    rows = levels.get("levels")
    late = [row.get("lateness_ms") for row in rows] if isinstance(rows, list) else []
    classes = timers.get("lateness_ms")
    late += list(classes.values()) if isinstance(classes, dict) else []
    values = [_integer(each.get("p99")) for each in late if isinstance(each, dict)]
    return max((value for value in values if value is not None), default=None)


def _shown(overview: Overview) -> object:
    from rich.console import Group

    width = console().width
    rows = [_row(each) for each in overview.brokers]
    parts = [fitted(BROKERS, rows, optional=("#id", "role"), width=width)]
    lag = sum(group.lag for group in overview.groups)
    shown = overview.groups[:GROUPS_SHOWN]
    title = heading(f"lag of all groups: {lag:,}")
    groups = [(each.group, each.members, f"{each.rate:,.1f}", f"{each.lag:,}") for each in shown]
    if groups:
        return Group(*parts, title, fitted(GROUPS, groups, optional=(), width=width))
    return Group(*parts, title)


def _row(load: BrokerLoad) -> tuple[object, ...]:
    is_late = load.pending is None or load.late_p99_ms is not None
    return (
        load.broker,
        "" if load.broker_id is None else load.broker_id,
        load.role,
        _number(load.in_rate),
        _number(load.out_rate),
        _number(load.pending),
        _number(load.late_p99_ms) if is_late else NONE,
        _number(load.replica_lag_bytes) if load.role != "master" else NONE,
        load.failure,
    )


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
