"""Audits: runs of every broker with their verdicts, and the messages of the findings."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import Refused
from duemq.console.blocks import Cell, Key, Notice, PageContent, Table
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.catalogue import TEXTS
from duemq.console.pages.timers import message_link
from duemq.http.broker_states import of_masters, value_of
from duemq.http.endpoints import JsonObject
from duemq.http.problems import Problem
from duemq.net.view_names import AUDITS_VIEW
from duemq_common.codes import ResponseCode
from message_store.log.offset_id import encode_offset_id

PAGE_SIZE: Final = 100
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


@dataclass(frozen=True, slots=True)
class AuditsPart:
    """Audits of one broker.

    Attributes:
        runs: Rows by start and id; None: the ledger cannot be read.
        failure: Why it cannot.
        has_more: Whether there are older ones.
        plan: Row of the audits that are planned.
    """

    runs: list[tuple[tuple[int, str], list[Cell]]] | None
    failure: str
    has_more: bool
    plan: list[Cell]


async def audits(call: PageCall) -> PageContent:
    """Return the audits of all brokers, newest first, and when the next ones start."""
    admin, cursor = call.session.admin, call.query.get("cursor", "")

    async def part(member: BrokerMember) -> AuditsPart:
        plan = _plan_row(member.name, await admin.view(member.address, AUDITS_VIEW))
        try:
            page: JsonObject = await admin.stored_audits(member.address, cursor=cursor)
        except Refused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            return AuditsPart(None, error.remark, False, plan)
        runs = [
            ((run["started_ms"], run["audit_id"]), _run_row(member.name, run))
            for run in page["audits"] or ()
        ]
        return AuditsPart(runs, "", bool(page["cursor"]), plan)

    states = await of_masters(call.session, part)
    unknown = unknown_parts(states)
    parts: list[AuditsPart] = [state.value for state in states if not state.error]
    failed = [
        Notice(Key("audits.ledger_failed"), f"{state.member.name}: {state.value.failure}", "bad")
        for state in states
        if not state.error and state.value.runs is None
    ]
    runs = sorted((run for one in parts for run in one.runs or ()), key=_time_of, reverse=True)
    following = ""
    if len(runs) > PAGE_SIZE or any(one.has_more for one in parts):
        started_ms, audit_id = runs[:PAGE_SIZE][-1][0]
        following = f"/audits?{urlencode({'cursor': f'{started_ms}_{audit_id}'})}"
    rows = [row for _, row in runs[:PAGE_SIZE]]
    empty = Key("value.unknown" if unknown or failed else "audits.none")
    blocks: list[object] = [
        *unknown,
        *failed,
        Table(Key("audits.runs"), RUNS, rows, empty, following),
        Table(Key("audits.plans"), PLANS, [one.plan for one in parts], empty),
    ]
    return PageContent(Key("nav.audits"), blocks, live=True)


def _time_of(run: tuple[tuple[int, str], list[Cell]]) -> tuple[int, str]:
    return run[0]


async def audit(call: PageCall) -> PageContent:
    """Return the verdicts of one audit, and some messages of each finding."""
    name, broker = call.path["name"], call.query.get("broker", "")
    members = await call.session.masters()
    member = next((one for one in members if one.name == broker), None)
    if member is None:
        raise Problem(404, "no-broker", "There is no such broker", broker)

    async def part(member: BrokerMember) -> list[object]:
        cursor = call.query.get("cursor", "")
        page = await call.session.admin.stored_audits(member.address, audit=name, cursor=cursor)
        return _blocks(member, name, page)

    blocks: list[object] = await value_of(member, part)
    return PageContent(Key("audits.audit"), blocks, name)


def _blocks(member: BrokerMember, name: str, page: JsonObject) -> list[object]:
    """Return the verdicts of an audit, and a page of its findings."""
    run = page["audit"]
    blocks: list[object] = []
    if run["why"]:
        blocks.append(Notice(Key("audits.reason"), run["why"], "bad"))
    counts = [
        [_verdict_cell(verdict), Cell(count, "number")]
        for verdict, count in run["verdicts"].items()
    ]
    blocks.append(Table(Key("audits.verdicts"), ("verdict", "messages"), counts))
    rows = [_finding_row(member, finding) for finding in page["findings"] or ()]
    empty = Key("audits.not_stored" if page["findings"] is None else "table.empty")
    following = ""
    if page["cursor"] is not None:
        query = urlencode({"broker": member.name, "cursor": page["cursor"]})
        following = f"/audits/{quote(name, safe='')}?{query}"
    return [*blocks, Table(Key("audits.findings"), FINDINGS, rows, empty, following)]


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
