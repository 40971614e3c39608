"""`duemq replicas`: role, state and lag of every broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duemq.cli.exits import Exit
from duemq.cli.options import Target
from duemq.cli.output import console, fitted, print_json
from duemq.client.errors import Refused, Unsupported
from duemq.net.view_names import REPLICATION_VIEW

if TYPE_CHECKING:
    from duemq.client.admin import Admin

UNKNOWN = "unknown"
COLUMNS = ("broker", "#id", "address", "role", "state", "#log end", "#lag bytes", "last error")
OPTIONAL = ("#log end",)
REASONS = ("groupFailure", "refusal", "failure")
"""Keys of errors, the most important first: the last connection may have ended long ago."""


def show_replicas(target: Target) -> None:
    """Print the members of every broker group; exit with `UNREACHABLE` if none responds."""
    views, unreachable = target.ask(_fetch)
    if target.as_json:
        print_json(views)
    else:
        rows = [_row(member) for member in views]
        console().print(fitted(COLUMNS, rows, optional=OPTIONAL, width=console().width))
    if views and unreachable == len(views):
        raise SystemExit(int(Exit.UNREACHABLE))


async def _fetch(admin: Admin) -> tuple[list[dict[str, Any]], int]:
    """Return the members, and how many of them do not respond."""
    views, unreachable = list[dict[str, Any]](), 0
    for each in await admin.members():
        member = {
            "broker": each.broker_name,
            "id": each.broker_id,
            "address": each.address,
        }
        try:
            member |= await admin.view(each.address, REPLICATION_VIEW)
        except ConnectionError as error:
            member |= {"failure": str(error)}
            unreachable += 1
        except Unsupported:
            member |= {"failure": "not a DueMQ broker: see mqadmin haStatus"}
        except Refused as error:
            member |= {"failure": error.remark}
        views.append(member)
    return views, unreachable


def _row(member: dict[str, Any]) -> tuple[str, ...]:
    return (
        member["broker"] or "",
        UNKNOWN if member["id"] is None else str(member["id"]),
        member["address"],
        member.get("role") or UNKNOWN,
        member.get("state") or UNKNOWN,
        _number(member.get("logEnd")),
        _number(member.get("lagBytes")) if member.get("role") != "MASTER" else "-",
        next((text for key in REASONS if (text := member.get(key))), ""),
    )


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
