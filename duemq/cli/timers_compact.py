"""`duemq timers compact`: copy pending timers out of old commit log files."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from duemq.cli.exits import Exit
from duemq.cli.options import Target
from duemq.cli.output import print_json, print_table
from duemq.client.routes import json_object
from duemq.net.view_names import TIMERS_VIEW
from duemq_common.codes import RequestCode
from duemq_common.text import binary_size

if TYPE_CHECKING:
    from duemq.client.admin import Admin

PLAN_TIMEOUT_S: Final = 600.0
POLL_INTERVAL_S: Final = 0.5
REFUSALS: Final = ("no_room", "refused", "behind")
COLUMNS: Final = ("broker", "#messages", "#bytes to copy", "#log bytes freed", "remark")


def compact_and_show(target: Target, *, dry_run: bool) -> None:
    """Send the request to every broker, wait until all are done, and print the results.

    Exit code 4: a broker refused, for example for lack of disk space.
    """
    responses = target.ask(lambda admin: _compact(admin, dry_run))
    if target.as_json:
        print_json({"dry_run": dry_run, "brokers": responses})
    else:
        would = "would be copied" if dry_run else "copied"
        title = f"{sum(response['messages'] for response in responses):,} messages {would}"
        print_table(
            title, COLUMNS, [_row(response) for response in responses], optional=("broker",)
        )
    if any(response["blocked_by"] in REFUSALS for response in responses):
        raise SystemExit(int(Exit.REFUSED))


async def _compact(admin: Admin, dry_run: bool) -> list[dict[str, Any]]:
    responses = []
    for broker in await admin.masters():
        response = await _fetch(admin, broker.address, dry_run)
        if response["started"]:
            response |= await _wait_until_finished(admin, broker.address)
        responses.append({"broker": broker.name, **response})
    return responses


async def _fetch(admin: Admin, address: str, dry_run: bool) -> dict[str, object]:
    body = json.dumps({"dry_run": dry_run}).encode()
    response = await admin.ask_broker(
        address,
        RequestCode.COMPACT_TIMERS,
        body=body,
        timeout_s=PLAN_TIMEOUT_S,
        feature="timers of DueMQ",
    )
    return json_object(response)


async def _wait_until_finished(admin: Admin, address: str) -> dict[str, object]:
    """Wait until the broker has finished; return why timers remain, if any."""
    while True:
        view = (await admin.view(address, TIMERS_VIEW))["compaction"]
        if not view["running"]:
            blocked_by = view["blocked_by"]
            return {"blocked_by": blocked_by, "why": view["why"]} if blocked_by else {}
        await asyncio.sleep(POLL_INTERVAL_S)


def _row(response: dict[str, Any]) -> tuple[object, ...]:
    remark = response["why"]
    if response["running"] and not response["dry_run"]:
        remark = "compaction is already running: see duemq timers"
    copied, freed = binary_size(response["bytes"]), binary_size(response["frees"])
    return response["broker"], f"{response['messages']:,}", copied, freed, remark
