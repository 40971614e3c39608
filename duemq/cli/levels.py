"""`duemq levels`: pending messages by level, next due time, lateness of deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import console, fitted, heading, plural, print_json, refreshing
from duemq.cli.retrying import watch
from duemq.cli.times import duration_text
from duemq.net.view_names import LEVELS_VIEW

if TYPE_CHECKING:
    from duemq.client.admin import Admin
    from duemq.client.admin.cluster import BrokerMember

WATCH_INTERVAL_S = 1.0
COLUMNS = (
    "broker",
    "#level",
    "#delay",
    "#pending",
    "next due (UTC)",
    "#due in",
    "#delivered",
    "#late p50 ms",
    "#late p99",
    "#late max",
    "#refused",
    "#quarantined",
)
OPTIONAL = ("#late p50 ms", "#late p99", "broker", "next due (UTC)", "#late max", "#delay")


def show_levels(target: Target, *, is_repeated: bool) -> None:
    """Print the levels of every broker, once or repeatedly."""

    async def show_all(admin: Admin) -> None:
        brokers = await admin.masters()
        if is_repeated:
            with refreshing(as_json=target.as_json) as show:
                await watch(
                    ", ".join(broker.address for broker in brokers),
                    lambda: _fetch(admin, brokers),
                    lambda views: show(views if target.as_json else _shown(views)),
                    interval_s=WATCH_INTERVAL_S,
                )
            return
        views = await _fetch(admin, brokers)
        if target.as_json:
            print_json(views)
        else:
            console().print(_shown(views))

    target.ask(show_all)


async def _fetch(admin: Admin, brokers: list[BrokerMember]) -> list[dict[str, object]]:
    return [
        {
            "broker": broker.name,
            "address": broker.address,
            **await admin.view(broker.address, LEVELS_VIEW),
        }
        for broker in brokers
    ]


def _shown(views: list[dict[str, Any]]) -> object:
    """Return a table of the used levels."""
    from rich.console import Group

    name = [view["broker"] for view in views] if len(views) > 1 else [""]
    rows = [
        _row(broker, level, view["now_ms"])
        for broker, view in zip(name, views, strict=True)
        for level in view["levels"]
        if _is_used(level)
    ]
    pending = sum(view["pending"] for view in views)
    empty = sum(len(view["levels"]) for view in views) - len(rows)
    text = f"{pending:,} {plural(pending, 'message')} pending in levels"
    parts = [heading(text)]
    if rows:
        parts.append(fitted(COLUMNS, rows, optional=OPTIONAL, width=console().width))
    if empty:
        parts.append(f"{empty} unused {plural(empty, 'level')} not shown; --json shows all")
    return Group(*parts)


def _is_used(level: dict[str, Any]) -> bool:
    counts = (
        level["pending"],
        level["delivered"],
        level["refused"],
        *level["quarantined"].values(),
    )
    return any(counts)


def _row(broker: str, level: dict[str, Any], now_ms: int) -> tuple[Any, ...]:
    due, late = level["next_due_ms"], level["lateness_ms"]
    return (
        broker,
        level["level"],
        duration_text(level["delay_ms"]) if level["delay_ms"] is not None else "-",
        f"{level['pending']:,}",
        table_time(due)[:19],
        duration_text(max(due - now_ms, 0)) if due is not None else "",
        f"{level['delivered']:,}",
        *(_or_blank(late[name]) for name in ("p50", "p99", "max")),
        level["refused"] or "",
        sum(level["quarantined"].values()) or "",
    )


def _or_blank(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
