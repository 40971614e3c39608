"""`duemq levels`: what waits in each level, what is due next, how late deliveries were."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.cli.client import Cluster
from broker.cli.exits import Exit, fail
from broker.cli.messages import time_text
from broker.cli.output import console, print_json, print_json_line, table

VIEW = "schedule_service.levels"
WATCH_INTERVAL_S = 1.0
COLUMNS = (
    "broker", "#level", "#delay", "#pending", "next due (UTC)", "#due in", "#delivered",
    "#late p50 ms", "#p99", "#max", "#refused", "#quarantined",
)  # fmt: skip


def show_levels(*, namesrv: str, broker: str, watch: bool, as_json: bool) -> None:
    """Print the levels of every broker, once or again and again."""
    asyncio.run(_show(namesrv, broker, watch, as_json))


async def _show(namesrv: str, broker: str, watch: bool, as_json: bool) -> None:
    async with Cluster(namesrv, broker) as cluster:
        brokers = await cluster.brokers()
        if not brokers:
            fail("the name server knows no broker", Exit.FOUND_FAULT)
        if not watch:
            views = await _ask(cluster, brokers)
            if as_json:
                print_json(views)
            else:
                console().print(_table(views))
        elif as_json:
            while True:
                print_json_line(await _ask(cluster, brokers))
                await asyncio.sleep(WATCH_INTERVAL_S)
        else:
            await _watch(cluster, brokers)


async def _watch(cluster: Cluster, brokers: list[tuple[str, str]]) -> None:
    from rich.live import Live

    with Live(_table(await _ask(cluster, brokers)), console=console(), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            live.update(_table(await _ask(cluster, brokers)), refresh=True)


async def _ask(cluster: Cluster, brokers: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"broker": name or address, "address": address, **await cluster.view(address, VIEW)}
        for name, address in brokers
    ]


def _table(views: list[dict[str, Any]]) -> Any:
    rows = [
        _row(view["broker"], level, view["now_ms"]) for view in views for level in view["levels"]
    ]
    pending = sum(view["pending"] for view in views)
    return table(f"{pending:,} messages wait", COLUMNS, rows)


def _row(broker: str, level: dict[str, Any], now_ms: int) -> tuple[Any, ...]:
    due, late = level["next_due_ms"], level["lateness_ms"]
    return (
        broker,
        level["level"],
        duration_text(level["delay_ms"]) if level["delay_ms"] is not None else "-",
        f"{level['pending']:,}",
        time_text(due)[:23].replace("T", " ") if due is not None else "",
        duration_text(max(due - now_ms, 0)) if due is not None else "",
        f"{level['delivered']:,}",
        *(_or_blank(late[name]) for name in ("p50", "p99", "max")),
        level["refused"] or "",
        sum(level["quarantined"].values()) or "",
    )


def _or_blank(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def duration_text(ms: int) -> str:
    """Return a duration as people write it: 950ms, 12.5s, 3m20s, 2h, 4d1h."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f}".removesuffix(".0") + "s"
    parts, left = [], ms // 1_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
