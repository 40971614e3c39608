"""Timers, messages and decisions of the console: search, history, confirmation, results."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, Producer
from duemq.console.pages import timers
from recurring_schedules.definition import Definition
from tests.duemq.console.conftest import HOSTILE
from tests.duemq.console.rig import (
    ACCOUNT_KEYS,
    OPERATOR,
    VIEWER,
    Served,
    csrf_of,
    served,
    with_accounts,
)
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S
from tests.support.wait_until import until
from timer_store.pending import walk

LINK = re.compile(r'href="/console(/messages/[^"]+)">')
NEXT = re.compile(r'rel="next" href="/console([^"]+)"')
DUE = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%S")


async def prepared(broker: Broker) -> None:
    """Create accounts, and messages of a topic for each decision."""
    await with_accounts(broker)
    address = f"127.0.0.1:{broker.port}"
    async with Producer(broker=address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        for key in ("cancel", "move", "fire", "changed", "refused"):
            await producer.send(Message(key, b"b", keys=[key], delay=timedelta(hours=1)))
    async with Admin(broker=address, credentials=ROOT) as admin:
        await admin.create_schedule(Definition(name="report", topic="cancel", cron="0 6 * * *"))


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and pending messages."""
    root = tmp_path_factory.mktemp("decisions")
    with served(root, prepared, **ACCOUNT_KEYS) as running:
        yield running


def message_path(client: httpx.Client, key: str) -> str:
    """Return the page of the only pending message with a key."""
    page = client.get("/timers", params={"key": key})
    [path] = LINK.findall(page.text)
    return html.unescape(path)


def form_with(text: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form for an action."""
    for form in re.findall(r"<form class=\"card fields\".*?</form>", text, re.S):
        fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form))
        if fields.get("action") == action:
            return {name: html.unescape(value) for name, value in fields.items()}
    raise AssertionError(f"no form for {action}")


def test_timers_are_searched_by_key_topic_and_due_time(shared_console: Served) -> None:
    with shared_console.client() as client:
        every = client.get("/timers")
        assert len(LINK.findall(every.text)) == 31
        [path] = LINK.findall(client.get("/timers", params={"key": "k7"}).text)
        unique_id = unquote(path.removeprefix("/messages/"))
        assert LINK.findall(client.get("/timers", params={"key": unique_id}).text) == [path]
        assert not LINK.findall(client.get("/timers", params={"topic": "other"}).text)
        assert "There are none." in client.get("/timers?from=2099-01-01T00:00").text
        [hottest, *_] = re.findall(r'href="/console(/timers\?from=[^"]+)"', client.get("/").text)
        assert LINK.findall(client.get(html.unescape(hottest)).text)
        for query in ("from=tomorrow", "until=9999999999999999", "cursor=x", f"topic={'t' * 200}"):
            assert client.get(f"/timers?{query}").status_code == 400, query


def test_a_search_by_key_leads_to_messages_in_any_state(shared_console: Served) -> None:
    """Level messages and delivered ones are not in the list of timers."""
    with shared_console.client() as client:
        text = client.get("/timers", params={"key": "level-key"}).text
        assert not LINK.findall(text)
        [path] = re.findall(r'method="get" action="/console(/messages/[^"]+)"', text)
        assert "level-key" in client.get(html.unescape(path)).text


def test_a_long_list_of_timers_has_pages(
    shared_console: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "PAGE_SIZE", 12)
    links: list[str] = []
    with shared_console.client() as client:
        path = "/timers?topic=orders"
        for _ in range(10):
            page = client.get(path).text
            links += LINK.findall(page)
            following = NEXT.search(page)
            if following is None:
                break
            path = html.unescape(following.group(1))
            assert "topic=orders" in path
    assert len(links) == len(set(links)) == 31


async def with_a_rare_topic(broker: Broker) -> None:
    """Send timers of one topic, and after all of them one of another topic."""
    async with Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer:
        for number in range(1, 40):
            topic = "rare" if number == 39 else "frequent"
            await producer.send(Message(topic, b"b", delay=timedelta(minutes=10 * number)))


def test_a_page_of_a_rare_topic_continues_to_its_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "PAGE_UNITS", 4)
    monkeypatch.setattr(walk, "TOGETHER_UNITS", 2)
    monkeypatch.setattr(timers, "SEARCH_S", TIMEOUT_S)
    with served(tmp_path, with_a_rare_topic) as running, running.client() as client:
        page = client.get("/timers?topic=rare").text
        assert len(LINK.findall(page)) == 1
        monkeypatch.setattr(timers, "SEARCH_S", 0.0)
        page = client.get("/timers?topic=rare").text
        assert not LINK.findall(page)
        assert "None on this page; the search continues." in page
        assert NEXT.search(page) is not None


def test_unknown_timers_are_not_an_empty_list(tmp_path: Path) -> None:
    with served(tmp_path, timerWheelEnable="false") as running, running.client() as client:
        text = client.get("/timers").text
    assert "There are none." not in text
    assert '<p class="empty">unknown</p>' in text


def test_a_message_shows_its_history_and_its_texts_as_text(shared_console: Served) -> None:
    with shared_console.client() as client:
        reflected = client.get("/timers", params={"topic": HOSTILE, "key": HOSTILE}).text
        page = client.get(message_path(client, "<b>k</b>"))
        missing = client.get("/messages/<script>")
        named = client.get("/messages/%3Cb%3Ek%3C%2Fb%3E")
    assert page.status_code == named.status_code == 200
    assert missing.status_code == 404
    escaped = HOSTILE.replace('"', "&#34;").replace("<", "&lt;").replace(">", "&gt;")
    assert page.text.count(escaped) == 2  # property and body
    for text in (page.text, named.text, missing.text, reflected):
        assert not re.search(r"<script>|<img|<b>|<i>", text)
    assert "scheduled" in page.text
    assert "pending" in page.text
    assert 'action="/console/decisions"' not in page.text


def test_a_key_of_several_messages_is_a_list(shared_console: Served) -> None:
    async def send() -> None:
        async with Producer(
            broker=f"127.0.0.1:{shared_console.broker.port}", timeout_s=TIMEOUT_S
        ) as producer:
            for _ in range(2):
                await producer.send(Message("several", b"b", keys=["several"]))

    shared_console.run(send())
    with shared_console.client() as client:
        links = LINK.findall(client.get("/messages/several").text)
        assert len(links) == 2
        assert "stored" in client.get(links[0]).text


@pytest.mark.parametrize("action", ["cancel", "fire", "move"])
def test_a_decision_is_confirmed_and_has_a_result(accounts: Served, action: str) -> None:
    with accounts.logged_in(OPERATOR) as client:
        path = message_path(client, action)
        query = form_with(client.get(path).text, action) | {"to": DUE}
        question = client.get("/decisions", params=query)
        assert path.removeprefix("/messages/") in question.text
        assert "Due (UTC)" in question.text
        fields = form_with(question.text, action)
        assert message_path(client, action) == path  # a confirmation decides nothing
        forged = client.post("/decisions", data=fields | {"csrf": "x"})
        assert forged.status_code == 403
        result = client.post("/decisions", data=fields)
        assert "The broker stored the decision." in result.text, result.text
        again = client.post("/decisions", data=fields)
        is_repeatable = action == "cancel"
        assert ("cannot decide on the message" in again.text) != is_repeatable
        events = {"cancel": "cancelled", "fire": "delivered", "move": DUE.replace("T", " ")}
        until(
            lambda: events[action] in client.get(path).text,  # a later turn delivers
            seconds=TIMEOUT_S,
            what=events[action],
        )


def test_schedules_are_listed(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        text = client.get("/schedules").text
    assert ">report</a></td>" in text
    assert "<code>0 6 * * *</code>" in text
    assert "<td>active</td>" in text


def test_a_decision_needs_the_due_time_that_was_confirmed(accounts: Served) -> None:
    with accounts.logged_in(ROOT) as client:
        query = form_with(client.get(message_path(client, "changed")).text, "move")
        moved = form_with(client.get("/decisions", params=query | {"to": DUE}).text, "move")
        cancelled = form_with(
            client.get("/decisions", params=query | {"action": "cancel"}).text, "cancel"
        )
        assert "stored the decision" in client.post("/decisions", data=moved).text
        late = client.post("/decisions", data=cancelled)
        assert "not pending with this due time" in late.text
        assert message_path(client, "changed")


def test_viewers_decide_nothing(accounts: Served, shared_console: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        path = message_path(client, "refused")
        page = client.get(path).text
        assert 'action="/console/decisions"' not in page
        name = path.removeprefix("/messages/")
        fields = {"action": "cancel", "name": name, "topic": "refused", "due": "1"}
        assert client.get("/decisions", params=fields).status_code == 403
        posted = client.post("/decisions", data=fields | {"csrf": csrf_of(page)})
        assert posted.status_code == 403
        assert "role" in posted.text
    with shared_console.client() as client:
        assert client.get("/decisions", params=fields).status_code == 403
        assert client.post("/decisions", data=fields).status_code == 403


def test_malformed_decisions_are_refused(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        path = message_path(client, "refused")
        fields = {"name": path.removeprefix("/messages/"), "topic": "refused"}
        for more in ({}, {"action": "delete"}, {"action": "move"}, {"action": "move", "to": "x"}):
            assert client.get("/decisions", params=fields | more).status_code == 400, more
        csrf = csrf_of(client.get(path).text)
        no_due = fields | {"action": "cancel", "csrf": csrf}
        assert client.post("/decisions", data=no_due).status_code == 400
        assert message_path(client, "refused") == path
