"""Audits: runs of every broker with their verdicts, and the messages of the findings."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Final
from urllib.parse import urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.console.blocks import Cell, Key, Notice, PageContent, Table
from duemq.console.brokers import masters, of_members, unknown_parts
from duemq.console.call import PageCall
from duemq.console.catalogue import TEXTS
from duemq.console.pages.timers import message_link
from duemq.http.endpoints import JsonObject
from duemq.http.problems import Problem
from duemq.net.codes import ResponseCode
from duemq_common.errors import RequestError
from message_store.log.offset_id import encode_offset_id

RUNS_VIEW: Final = "reconciliation.audits"
STATUS_VIEW: Final = "reconciliation.status"
FINDINGS_VIEW: Final = "reconciliation.findings"
RUNS: Final = (
    "audit",
    "started",
    "duration",
    "made_by",
    "outcome",
    "messages",
    "late_p99",
    "broker",
)
PLANS: Final = ("broker", "times", "state", "runs", "skipped", "reason")
FINDINGS: Final = ("id", "verdict", "reason", "topic", "due", "delivered", "alike")
OUTCOMES: Final = ("clean", "findings", "failed")
"""Names of the exit codes 0, 1 and 2."""


async def audits(call: PageCall) -> PageContent:
    """Return the audits of all brokers, newest first, and when the next ones start."""
    admin = call.session.admin

    async def part(member: BrokerMember) -> JsonObject:
        runs, status = await asyncio.gather(
            admin.view(member.address, RUNS_VIEW), admin.view(member.address, STATUS_VIEW)
        )
        return {"runs": runs, "status": status}

    states = await of_members(await masters(call.session), part)
    reports = [(state.member.name, state.value) for state in states if state.value is not None]
    runs = [
        (run["started_ms"], _run_row(name, run))
        for name, value in reports
        for run in value["runs"]["audits"] or ()
    ]
    is_complete = len(reports) == len(states) and all(
        value["runs"]["audits"] is not None for _, value in reports
    )
    rows = [row for _, row in sorted(runs, key=lambda each: each[0], reverse=True)]
    empty = Key("audits.none" if is_complete else "value.unknown")
    blocks: list[object] = [*unknown_parts(states)]
    for name, value in reports:
        if value["runs"]["failure"]:
            text = f"{name}: {value['runs']['failure']}"
            blocks.append(Notice(Key("audits.ledger_failed"), text, "bad"))
    columns = [Key(f"column.{name}") for name in RUNS]
    blocks.append(Table(Key("audits.runs"), columns, rows, empty))
    plans = [_plan_row(name, value["status"]) for name, value in reports]
    columns = [Key(f"column.{name}") for name in PLANS]
    blocks.append(Table(Key("audits.plans"), columns, plans, empty))
    return PageContent(Key("nav.audits"), blocks, live=True)


async def audit(call: PageCall) -> PageContent:
    """Return the verdicts of one audit, and some messages of each finding."""
    name, broker = call.path["name"], call.query.get("broker", "")
    members = await masters(call.session)
    member = next((one for one in members if one.name == broker), None)
    if member is None:
        raise Problem(404, "no-broker", "There is no such broker", broker)
    admin = call.session.admin
    runs, messages = await asyncio.gather(
        admin.view(member.address, RUNS_VIEW),
        admin.view(member.address, FINDINGS_VIEW, audit=name),
    )
    run = next((one for one in runs["audits"] or () if one["audit_id"] == name), None)
    if run is None and runs["audits"] is not None:
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"broker {broker} has no audit {name}")
    blocks: list[object] = []
    if run is not None and run["why"]:
        blocks.append(Notice(Key("audits.reason"), run["why"], "bad"))
    counts = [
        [_verdict_cell(verdict), Cell(count, "number")]
        for verdict, count in (run["verdicts"] if run is not None else {}).items()
    ]
    columns = [Key("column.verdict"), Key("column.messages")]
    empty = Key("value.unknown" if run is None else "table.empty")
    blocks.append(Table(Key("audits.verdicts"), columns, counts, empty))
    rows = [_finding_row(member, finding) for finding in messages["findings"] or ()]
    columns = [Key(f"column.{name}") for name in FINDINGS]
    empty = Key("audits.not_in_memory" if messages["findings"] is None else "table.empty")
    blocks.append(Table(Key("audits.findings"), columns, rows, empty))
    return PageContent(Key("audits.audit"), blocks, name, live=True)


def _run_row(broker: str, run: JsonObject) -> list[Cell]:
    link = f"/audits/{run['audit_id']}?{urlencode({'broker': broker})}"
    code = run["exit_code"]
    outcome = OUTCOMES[code] if 0 <= code < len(OUTCOMES) else OUTCOMES[-1]
    return [
        Cell(run["audit_id"], link=link),
        Cell(run["started_ms"], "time"),
        Cell(run["ended_ms"] - run["started_ms"], "ms"),
        Cell(run["made_by"]),
        Cell(f"audits.{outcome}", "key", state="good" if code == 0 else "bad"),
        Cell(sum(run["verdicts"].values()) if code < 2 else None, "number"),
        Cell(run["late_p99_ms"], "ms"),
        Cell(broker),
    ]


def _plan_row(broker: str, status: JsonObject) -> list[Cell]:
    last = status["last"] or {}
    state = "engine.runs" if status["running"] else "value.none"
    return [
        Cell(broker),
        Cell(status["cron"], "code") if status["cron"] else Cell("audits.no_plan", "key"),
        Cell(state, "key"),
        Cell(status["runs"], "number"),
        Cell(status["skipped"], "number"),
        Cell(last.get("why", ""), "words"),
    ]


def _verdict_cell(verdict: str) -> Cell:
    key = f"audit_verdict.{verdict.replace(' ', '_')}"
    return Cell(key, "key") if key in TEXTS else Cell(verdict)


def _finding_row(member: BrokerMember, finding: JsonObject) -> list[Cell]:
    name = finding.get("unique_id") or _offset_id(member.address, finding.get("root"))
    return [
        Cell(name or None, link=message_link(name)),
        _verdict_cell(finding["verdict"]),
        Cell(finding.get("why") or "", "words"),
        Cell(finding.get("topic")),
        Cell(finding.get("due_ms"), "time"),
        Cell(finding.get("delivered_ms") or 0, "time"),
        Cell(finding.get("alike"), "number"),
    ]


def _offset_id(address: str, root: int | None) -> str:
    """Return the offset message id of a record; empty if the broker has no numeric address."""
    host, _, port = address.rpartition(":")
    try:
        packed = ipaddress.ip_address(host.strip("[]")).packed
    except ValueError:
        return ""
    return "" if root is None else encode_offset_id(packed, int(port), root)
