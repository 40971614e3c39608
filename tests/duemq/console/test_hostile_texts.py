"""Markup in every text that reaches a page is shown as text, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, Producer
from duemq.client.admin.cluster import ClusterAdmin
from duemq.client.admin.groups import GroupInfo, GroupsAdmin, GroupSettings
from duemq.client.admin.topics import TopicInfo, TopicsAdmin, TopicSettings
from recurring_schedules.definition import Definition
from tests.duemq.console import test_operating_browser
from tests.duemq.console.conftest import HOSTILE
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.support.accounts import ROOT
from tests.support.browser import Browser
from tests.support.running_broker import TIMEOUT_S

INJECTED = "document.querySelectorAll('body script, body img, body [onerror]').length"
TITLE = "document.title"
KEPT = ("cursor", "pos")  # values that the console sends back
NO_TEXTS = ("/bulk", "/dead-letters/readers", "/levels", "/quarantine", "/migrations")
PAGES = (
    "/",
    "/timers",
    "/levels",
    "/migrations",
    "/topics",
    "/groups",
    "/schedules",
    "/quarantine",
    "/dead-letters",
    "/dead-letters/readers",
    "/audits",
    "/replicas",
    "/configuration?shown=all",
    "/operators",
    "/bulk",
)


def hostile(value: Any, name: str = "") -> Any:
    """Return plain data with markup in each text, and in each name of a table."""
    if isinstance(value, str):
        return value if name in KEPT else HOSTILE
    if isinstance(value, list):
        return [hostile(one) for one in value]
    if isinstance(value, dict):
        return {key: hostile(one, key) for key, one in value.items()}
    return value


async def prepared(broker: Broker) -> None:
    """Prepare something for every page."""
    await test_operating_browser.prepared(broker)
    async with Producer(broker=broker.address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        await producer.send(Message("orders", b"b", keys=["k"], delay=timedelta(hours=1)))
        every = Definition(name="report", topic="orders", cron="0 6 * * *")
        await Admin(client=producer.client).create_schedule(every)


@pytest.fixture(scope="module")
def logged_in(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker that has something for every page; the browser is logged in."""
    root = tmp_path_factory.mktemp("hostile")
    with served(root, prepared, **ACCOUNT_KEYS) as running:
        browser.open(f"{running.url}/console/login")
        browser.fill({"access_key": ROOT.access_key, "secret": ROOT.secret})
        with browser.next_page():
            browser.press("Enter")
        yield running


def check_texts(browser: Browser, *, is_shown: bool) -> None:
    """Check that the page runs and contains no markup of a text."""
    assert browser.faults() == []
    assert "broken" not in browser.evaluate(TITLE)
    assert browser.evaluate(INJECTED) == 0
    assert ("onerror=alert(1)" in browser.evaluate("document.body.textContent")) == is_shown


@pytest.mark.sampled
@pytest.mark.parametrize("path", PAGES)
def test_texts_of_a_broker(
    browser: Browser, logged_in: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text of a view, each name of a topic and a group, and each value has markup."""
    view = ClusterAdmin.view

    async def hostile_view(self: ClusterAdmin, *arguments: Any, **fields: Any) -> Any:
        result = await view(self, *arguments, **fields)
        return result if "accounts.rights" in arguments else hostile(result)

    async def topics(self: TopicsAdmin, **options: Any) -> list[TopicInfo]:
        names = [HOSTILE, f"%DLQ%{HOSTILE}"]
        return [TopicInfo(name, HOSTILE, {HOSTILE: TopicSettings()}) for name in names]

    async def groups(self: GroupsAdmin, **options: Any) -> list[GroupInfo]:
        return [GroupInfo(HOSTILE, {HOSTILE: GroupSettings()})]

    monkeypatch.setattr(ClusterAdmin, "view", hostile_view)
    monkeypatch.setattr(TopicsAdmin, "topics", topics)
    monkeypatch.setattr(GroupsAdmin, "groups", groups)
    browser.open(f"{logged_in.url}/console{path}")
    check_texts(browser, is_shown=path not in NO_TEXTS)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "path",
    [
        "/timers?key={text}&topic={text}",
        "/bulk/{text}",
        "/messages/{text}",
        "/groups/{text}",
        "/schedules/{text}",
        "/quarantine?topic={text}&group={text}",
        "/dead-letters/{text}",
        "/new-schedule?name={text}&topic={text}&cron={text}&zone={text}&body={text}",
        "/decisions?action={text}&name={text}&topic={text}",
        "/audits/{text}?broker={text}",
        "/configuration?prefix={text}",
        "/{text}",
        "/?span={text}",
        "/timers?from={text}",
    ],
)
def test_texts_of_an_address(browser: Browser, logged_in: Served, path: str) -> None:
    text = quote(HOSTILE, safe="")
    browser.open(f"{logged_in.url}/console{path.replace('{text}', text)}")
    faults = [one for one in browser.faults() if "status of 4" not in one]
    assert faults == []
    assert "broken" not in browser.evaluate(TITLE)
    assert browser.evaluate(INJECTED) == 0


def test_texts_of_headers_and_cookies_are_not_returned(logged_in: Served) -> None:
    headers = dict.fromkeys(
        ("Accept-Language", "User-Agent", "Referer", "X-Forwarded-For", "Cookie"), HOSTILE
    )
    with logged_in.client(headers=headers) as client:
        for path in ("/login", "/missing", "/timers"):
            page = client.get(path)
            assert page.status_code in (200, 404)
            assert "onerror" not in page.text
