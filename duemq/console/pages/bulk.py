"""Bulk decisions: what a search has found, the confirmation, progress, and the result of each item.

timers page --form--> POST /bulk --> /bulk/JOB: listing, confirmation, progress, results
"""

from __future__ import annotations

from itertools import starmap
from typing import Final
from urllib.parse import urlencode

from duemq.client.admin.resends import UndeliveredSearch
from duemq.client.bulk_decisions import PendingSearch
from duemq.console.blocks import (
    Cell,
    Field,
    Form,
    Key,
    Notice,
    PageContent,
    ProgressBar,
    Table,
    Tile,
    Tiles,
)
from duemq.console.brokers import notices_of
from duemq.console.bulk import READY_S
from duemq.console.bulk_job import ACTIVE, VERDICTS, BulkItem, BulkJob
from duemq.console.call import PageCall
from duemq.console.pages.timers import message_link
from duemq.console.pages.undelivered import RESEND, resend_options, undelivered_search
from duemq.console.rendering import time_of_ms
from duemq.http.broker_states import UnknownPart
from duemq.http.endpoints import invalid
from duemq.net.decisions import ACTIONS, TIME_MS_MAX
from duemq_common.charts import MS_MAX
from duemq_common.clock import SystemClock

RESEND_VERDICTS: Final = {
    "before": "bulk.verdict_resent",
    "open": "bulk.verdict_would_send",
    "unknown": "bulk.verdict_removed",
}
SAMPLE: Final = 10
PAGE_SIZE: Final = 100
NO_TIME: Final = -1
STATES: Final = {
    "listing": "",
    "ready": "",
    "running": "",
    "done": "good",
    "stopped": "bad",
    "failed": "bad",
}


async def jobs(call: PageCall) -> PageContent:
    """Return the page of all bulk decisions that the console has in memory."""
    rows = [
        [
            Cell(one.prepared_ms // 1_000 * 1_000, "time", _path(one)),
            Cell(f"bulk.{one.action}", "key"),
            Cell(_search_text(call, one.search), "words"),
            Cell(one.account),
            Cell(f"bulk.{one.state}", "key", state=STATES[one.state]),
            Cell(one.total, "number"),
            Cell(one.decided, "number"),
        ]
        for one in call.jobs.jobs()
    ]
    names = ("prepared", "action", "search", "account", "state", "messages", "decided")
    table = Table(Key("bulk.jobs"), names, rows)
    is_active = any(one.state in ACTIVE for one in call.jobs.jobs())
    return PageContent(Key("nav.bulk"), [Notice(Key("bulk.how")), table], live=is_active)


async def prepare(call: PageCall) -> PageContent:
    """List the hits of the search in a form, and go to the page of the job."""
    action = call.query.get("action", "")
    topic, key = (call.query.get(name, "").strip() for name in ("topic", "key"))
    if action == RESEND:
        search_again = undelivered_search(call)
        job = call.jobs.prepare(
            call.session, call.login.name, action, search_again, resend=resend_options(call)
        )
        return PageContent(Key("nav.bulk"), location=_path(job))
    if action not in ACTIONS.values():
        raise invalid("the action is one of: " + ", ".join((*ACTIONS.values(), RESEND)))
    from_ms, until_ms = call.time_ms("from", 0), call.time_ms("until", TIME_MS_MAX)
    deliver_ms = call.time_ms("to", NO_TIME) if action == "move" else None
    if deliver_ms is not None and not 0 <= deliver_ms <= MS_MAX:
        raise invalid("the new due time is missing, or is not a time")
    search = PendingSearch(topic=topic, key=key, from_ms=from_ms, until_ms=until_ms)
    job = call.jobs.prepare(call.session, call.login.name, action, search, deliver_ms)
    return PageContent(Key("nav.bulk"), location=_path(job))


async def job(call: PageCall) -> PageContent:
    """Return the page of a bulk decision."""
    one = call.jobs.find(call.path["name"])
    is_active = one.state in ACTIVE
    blocks: list[object] = [*_notices(call, one), _facts(call, one)]
    if one.state == "ready":
        blocks += _confirmation(call, one)
    elif one.started_ms:
        blocks.insert(0, ProgressBar(Key("bulk.progress"), one.decided, one.total))
    if one.started_ms or one.action == RESEND:
        blocks.append(_verdicts(one))
    if is_active and not one.stopped_by:
        blocks.insert(1, _button(one, "stop"))
    if one.total and not is_active:
        blocks += _items(call, one)
    if not is_active:
        blocks.append(_button(one, "discard"))
    return PageContent(Key(f"bulk.{one.action}"), blocks, live=is_active)


async def act(call: PageCall) -> PageContent:
    """Start, stop or discard a bulk decision."""
    one = call.jobs.find(call.path["name"])
    match call.query.get("do", ""):
        case "start":
            count = call.query.get("count", "").strip().replace(",", "")
            if one.state == "ready" and count != str(one.open):
                raise invalid(f"the number is not that of the messages, {one.open}: go back")
            call.jobs.start(call.session, one, call.login.name)
        case "stop":
            call.jobs.stop(one, call.login.name)
        case "discard":
            call.jobs.discard(one)
            return PageContent(Key("nav.bulk"), location="/bulk")
        case _:
            raise invalid("the form names no step")
    return PageContent(Key("nav.bulk"), location=_path(one))


def _path(one: BulkJob) -> str:
    return f"/bulk/{one.id}"


def _notices(call: PageCall, one: BulkJob) -> list[Notice]:
    notices = []
    if one.stopped_by and one.state in ACTIVE:
        notices.append(Notice(Key("bulk.stopping"), one.stopped_by))
    else:
        notices.append(Notice(Key(f"bulk.{one.state}_text"), one.failure, STATES[one.state]))
    notices += notices_of(starmap(UnknownPart, one.unknown.items()))
    if one.nameless:
        notices.append(Notice(Key("bulk.nameless"), f"{one.nameless:,}", "bad"))
    if one.damage:
        notices.append(Notice(Key("timers.damage"), "; ".join(one.damage[:SAMPLE]), "bad"))
    return notices


def _facts(call: PageCall, one: BulkJob) -> Tiles:
    tiles = [
        Tile(Key("column.messages"), Cell(one.total, "number")),
        Tile(Key("column.search"), Cell(_search_text(call, one.search))),
        Tile(Key("column.account"), Cell(one.account)),
    ]
    if one.deliver_ms is not None:
        tiles.insert(1, Tile(Key("decision.to"), Cell(one.deliver_ms, "time")))
    return Tiles(tiles)


def _search_text(call: PageCall, search: PendingSearch | UndeliveredSearch) -> str:
    every = "bulk.every"
    if isinstance(search, UndeliveredSearch):
        every = "nav.quarantine"
        if search.letters_of:
            every = "nav.dead_letters"
        parts = [text for text in (search.letters_of, search.topic, search.group) if text]
    else:
        parts = [text for text in (search.topic, search.key) if text]
    if search.from_ms:
        parts.append(f"≥ {time_of_ms(search.from_ms)}")
    if search.until_ms < TIME_MS_MAX:
        parts.append(f"< {time_of_ms(search.until_ms)}")
    return ", ".join(parts) or call.text(every)


def _confirmation(call: PageCall, one: BulkJob) -> list[object]:
    """Return the messages by topic, and the form that starts the decisions."""
    rows = [
        [
            Cell(topic),
            Cell(hits.count, "number"),
            Cell(hits.first_ms, "time"),
            Cell(hits.last_ms, "time"),
        ]
        for topic, hits in one.topics.items()
    ]
    names = ("topic", "messages", "first_due", "last_due")
    if one.action == RESEND:
        names = ("topic", "messages", "first_stored", "last_stored")
    blocks: list[object] = [Table(Key("bulk.by_topic"), names, rows)]
    if one.deliver_ms is not None and one.deliver_ms <= SystemClock().now_ms():
        blocks.insert(0, Notice(Key("decision.past"), state="bad"))
    if one.open and one.account == call.login.name:
        hidden = [("do", "start")]
        count = Field("count", Key("bulk.count"), required=True)
        label, title = Key(f"bulk.{one.action}"), Key("bulk.confirm")
        blocks.insert(0, Form(label, _path(one), [count], "post", hidden, title))
        minutes = f"{READY_S / 60:.0f} min"
        blocks.append(Notice(Key("bulk.expires"), minutes))
    return blocks


def _button(one: BulkJob, step: str) -> Form:
    return Form(Key(f"bulk.{step}"), _path(one), [], "post", [("do", step)])


def _verdicts(one: BulkJob) -> Table:
    rows = [
        [
            Cell(_verdict_key(one, verdict), "key", f"{_path(one)}?verdict={verdict}"),
            Cell(one.counts[verdict], "number"),
        ]
        for verdict in VERDICTS
        if one.counts[verdict]
    ]
    return Table(Key("bulk.results"), ("verdict", "messages"), rows)


def _verdict_key(one: BulkJob, verdict: str) -> Key:
    """Return the text of a result."""
    own = RESEND_VERDICTS if one.action == RESEND else {}
    return Key(own.get(verdict, f"bulk.verdict_{verdict}"))


def _items(call: PageCall, one: BulkJob) -> list[object]:
    """Return a page of the messages with their results."""
    verdict, first = call.query.get("verdict", ""), call.number("first", 0)
    if verdict and verdict not in VERDICTS:
        raise invalid("the verdict is one of: " + ", ".join(VERDICTS))
    rows: list[list[Cell]] = []
    following = ""
    for position, item in one.items(verdict, first):
        if len(rows) == PAGE_SIZE:
            query = {"verdict": verdict, "first": str(position)}
            following = f"{_path(one)}?{urlencode(query)}"
            break
        rows.append(_item_row(one, item))
    time = "stored" if one.action == RESEND else "due"
    names = (time, "topic", "id", "verdict", "remark")
    return [Table(Key("bulk.items"), names, rows, following=following)]


def _item_row(one: BulkJob, item: BulkItem) -> list[Cell]:
    return [
        Cell(item.due_ms, "time"),
        Cell(item.topic),
        Cell(item.name, link=message_link(item.name)),
        Cell(_verdict_key(one, item.verdict), "key"),
        Cell(item.remark, "words"),
    ]
