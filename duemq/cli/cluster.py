"""`duemq cluster`: version, rates and disk of every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from duemq.cli.exits import Exit
from duemq.cli.options import Target
from duemq.cli.output import print_json, print_table
from duemq.cli.times import time_cell
from duemq.client.admin import Admin
from duemq.client.admin.cluster import BrokerMember, time_or_none
from duemq.client.errors import Refused, Unreachable, Unsupported

COLUMNS = (
    "cluster",
    "broker",
    "#id",
    "address",
    "version",
    "#in/s",
    "#out/s",
    "#disk",
    "first message (UTC)",
    "started (UTC)",
    "error",
)
OPTIONAL = ("started (UTC)", "first message (UTC)", "cluster", "#disk")
OUT_KEYS = ("getTransferredTps", "getTransferedTps")  # 5.x, and before


def show_cluster(target: Target) -> None:
    """Print the brokers of all clusters; exit with `UNREACHABLE` if none responds."""
    members = target.ask(_members)
    if target.as_json:
        print_json([_plain(member, facts) for member, facts in members])
    else:
        rows = [_row(member, facts) for member, facts in members]
        print_table("", COLUMNS, rows, optional=OPTIONAL)
    if all("failure" in facts for _, facts in members):
        raise SystemExit(int(Exit.UNREACHABLE))


async def _members(admin: Admin) -> list[tuple[BrokerMember, Mapping[str, str]]]:
    members = await admin.members()
    if not members:
        await admin.masters()  # raises the error for a name server without brokers
    facts = await asyncio.gather(*(_facts(admin, member.address) for member in members))
    return list(zip(members, facts, strict=True))


async def _facts(admin: Admin, address: str) -> Mapping[str, str]:
    try:
        return await admin.runtime_info(address)
    except (Refused, Unreachable) as error:
        return {"failure": str(error)}


def rate(facts: Mapping[str, str], *keys: str) -> float | None:
    """Return the messages per second of the last 10 s; None: the broker does not report it."""
    text = next((facts[key] for key in keys if key in facts), "")
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def _number(facts: Mapping[str, str], key: str) -> float | None:
    try:
        return float(facts[key])
    except (KeyError, ValueError):
        return None


def _row(member: BrokerMember, facts: Mapping[str, str]) -> tuple[object, ...]:
    plain = _plain(member, facts)
    disk = plain["disk_ratio"]
    return (
        member.cluster,
        member.name,
        "" if member.broker_id is None else member.broker_id,
        member.address,
        plain["version"],
        _rate_text(plain["in_rate"]),
        _rate_text(plain["out_rate"]),
        f"{disk:.0%}" if isinstance(disk, float) and disk >= 0 else "",
        time_cell(time_or_none(int(_number(facts, "earliestMessageTimeStamp") or 0))),
        time_cell(time_or_none(int(_number(facts, "bootTimestamp") or 0))),
        facts.get("failure", ""),
    )


def _rate_text(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else "unknown"


def _plain(member: BrokerMember, facts: Mapping[str, str]) -> dict[str, object]:
    return {
        "cluster": member.cluster,
        "broker": member.broker_name,
        "id": member.broker_id,
        "address": member.address,
        "version": facts.get("brokerVersionDesc", ""),
        "in_rate": rate(facts, "putTps"),
        "out_rate": rate(facts, *OUT_KEYS),
        "disk_ratio": _number(facts, "commitLogDiskRatio"),
        "failure": facts.get("failure"),
        "facts": {key: value for key, value in facts.items() if key != "failure"},
    }


async def view_or_empty(admin: Admin, address: str, name: str) -> Mapping[str, object]:
    """Return a view, empty if the broker does not have it."""
    try:
        return await admin.view(address, name)
    except (Refused, Unsupported):
        return {}
