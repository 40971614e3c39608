"""Compaction request (9014): returns the plan, and runs it.

    body       JSON: {"dry_run": true}; an empty body begins a compaction
    response   0 + JSON: the plan; `started`: it runs, `timer_store.summary` shows its progress

All expired files are candidates, regardless of disk usage. They are removed at any hour, as soon as
a checkpoint includes the copies.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

import msgspec

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from timer_store.compaction.compactor import Survey
from timer_store.compaction.plan import NO_PLAN, CompactionPlan
from timer_store.store import TimerStore

NOTHING_EXPIRED: Final = "no commit log file is older than fileReservedTime"
NOTHING_NEEDED: Final = "no timer needs a commit log file that has expired"


class _CompactionRequest(msgspec.Struct, forbid_unknown_fields=True):
    dry_run: bool = False


async def handle_compact(timers: TimerStore, request: Request) -> Response:
    """Return the plan, and begin unless it is a dry run.

    Raises:
        RequestError: The body is malformed.
    """
    dry_run, compaction = _dry_run(request), timers.compaction
    plan, reason = await _plan(timers)
    under_way = compaction.running
    if not dry_run:
        compaction.start(plan)
    response = {
        "dry_run": dry_run,
        "started": compaction.running and not (dry_run or under_way),
        "running": under_way,
        "messages": plan.messages,
        "bytes": plan.bytes,
        "frees": plan.frees,
        "until": plan.until,
        "blocked_by": plan.blocked_by.value,
        "why": reason,
    }
    return Response(body=json.dumps(response).encode())


async def _plan(timers: TimerStore) -> tuple[CompactionPlan, str]:
    """Return the plan, and the reason for not freeing more."""
    removal = timers.store.retention.expired_files()
    if not removal.until:
        return NO_PLAN, NOTHING_EXPIRED
    survey = Survey(timers.state, removal.until)
    for _ in survey.steps():
        await asyncio.sleep(0)
    plan = timers.compaction.decide(removal, survey)
    return plan, plan.reason or ("" if plan.until else NOTHING_NEEDED)


def _dry_run(request: Request) -> bool:
    try:
        return msgspec.json.decode(request.body or b"{}", type=_CompactionRequest).dry_run
    except msgspec.ValidationError as error:
        text = "the body must be a JSON object with dry_run"
        if str(error).endswith("$.dry_run`"):
            text = "dry_run must be true or false"
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, text) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, f"the body is not JSON: {error}"
        ) from error
