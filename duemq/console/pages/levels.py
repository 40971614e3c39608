"""Delay levels of every broker: pending messages, next due times, lateness of deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.topics import QueueState
from duemq.client.errors import Unsupported
from duemq.console.blocks import Cell, Key, PageContent, Table, Tile, Tiles
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.http.broker_states import of_masters
from duemq.http.endpoints import JsonObject
from duemq.net.view_names import LEVELS_VIEW
from duemq_common.topics import SCHEDULE_TOPIC

PROGRESS_PREFIX: Final = "scheduleMessageOffset_"  # of brokerStatus: delivered,end
COLUMNS: Final = (
    "broker",
    "level",
    "delay",
    "pending",
    "next_due",
    "delivered_count",
    "late_p50",
    "late_p99",
    "late_max",
    "refused",
    "quarantined",
)
LATENESS: Final = ("p50", "p99", "max")


async def levels(call: PageCall) -> PageContent:
    """Return the levels of all masters; of Apache's brokers, the pending messages only."""

    async def part(member: BrokerMember) -> tuple[int, list[list[Cell]]]:
        admin = call.session.admin
        try:
            view: JsonObject = await admin.view(member.address, LEVELS_VIEW)
        except Unsupported:
            info = await admin.runtime_info(member.address)
            view = apache_view(info, await admin.queue_states(member, SCHEDULE_TOPIC))
        return view["pending"], [_row(member.name, level) for level in view["levels"]]

    states = await of_masters(call.session, part)
    parts: list[tuple[int, list[list[Cell]]]] = [one.value for one in states if not one.error]
    rows = [row for _, part_rows in parts for row in part_rows]
    unknown = unknown_parts(states)
    count = None if unknown else sum(count for count, _ in parts)
    pending = Tile(Key("overview.pending_levels"), Cell(count, "number"))
    empty = Key("value.unknown" if unknown else "table.empty")
    table = Table(Key("nav.levels"), COLUMNS, rows, empty)
    return PageContent(Key("nav.levels"), [*unknown, Tiles([pending]), table], live=True)


def apache_view(info: Mapping[str, str], queues: Sequence[QueueState]) -> JsonObject:
    """Return the levels of an Apache broker; a value that is missing is not known.

    The runtime information omits levels that have delivered nothing since the store is new.

    Args:
        queues: Queues of the levels, with the undelivered messages at their ends.
    """
    levels = []
    for queue in queues:
        level = queue.queue.queue_id + 1
        delivered = info.get(f"{PROGRESS_PREFIX}{level}", "").partition(",")[0]
        offset = max(int(delivered) if delivered.isdigit() else 0, queue.min_offset)
        levels.append({"level": level, "pending": max(queue.max_offset - offset, 0)})
    return {"levels": levels, "pending": sum(level["pending"] for level in levels)}


def _row(broker: str, level: JsonObject) -> list[Cell]:
    is_complete = "next_due_ms" in level
    late: JsonObject = level.get("lateness_ms") or {}
    quarantined = level.get("quarantined")
    return [
        Cell(broker),
        Cell(level["level"], "number"),
        Cell(level.get("delay_ms"), "ms"),
        Cell(level["pending"], "number"),
        Cell((level["next_due_ms"] or 0) if is_complete else None, "time"),
        Cell(level.get("delivered"), "number"),
        *(_lateness_cell(late.get(name), is_complete=is_complete) for name in LATENESS),
        Cell(level.get("refused"), "number"),
        Cell(None if quarantined is None else sum(quarantined.values()), "number"),
    ]


def _lateness_cell(ms: int | None, *, is_complete: bool) -> Cell:
    """Return a lateness; without a delivery there is none."""
    return Cell("value.none", "key") if ms is None and is_complete else Cell(ms, "ms")
