"""Bulk decisions, schedules and the time axis in a browser, by keyboard and on small screens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from duemq.console import bulk
from duemq.messages import pending_hits
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.duemq.console.test_browser import FULL_WIDTH, violations_of
from tests.support.accounts import ROOT
from tests.support.browser import Browser
from tests.support.running_broker import TIMEOUT_S

WIDTHS = (1_400, 390, 360)
MESSAGES = 30
WAIT_S = 30


async def with_campaigns(broker: Broker) -> None:
    """Send pending messages of two campaigns."""
    async with Producer(
        broker=f"127.0.0.1:{broker.port}", credentials=ROOT, timeout_s=TIMEOUT_S
    ) as producer:
        for topic in ("winter-sale", "spring-sale"):
            for number in range(MESSAGES):
                delay = timedelta(hours=1, seconds=number)
                await producer.send(Message(topic, b"b", keys=[f"k{number}"], delay=delay))


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Served]:
    """Console of a broker with accounts; the browser is logged in."""
    root = tmp_path_factory.mktemp("steering")
    with served(root, with_campaigns, **ACCOUNT_KEYS) as running:
        browser.open(f"{running.url}/console/")
        browser.fill({"access_key": ROOT.access_key, "secret": ROOT.secret})
        submit(browser, "Log out")
        yield running


def check_page(browser: Browser, axe: str) -> None:
    """Check that the page has no faults and is accessible, and fits each screen."""
    assert browser.faults() == []
    for width in WIDTHS:
        browser.resize(width)
        assert browser.evaluate(FULL_WIDTH) <= width
    assert violations_of(browser, axe) == []


def submit(browser: Browser, text: str = "") -> None:
    """Press the Enter key, and check that the next page has a text."""
    with browser.next_page():
        browser.press("Enter")
    assert text in browser.source


@pytest.mark.extended
def test_all_hits_are_cancelled_by_keyboard(
    browser: Browser, axe: str, accounts: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, decide = threading.Event(), bulk.decide_page

    async def slow(*arguments: Any) -> None:
        await decide(*arguments)
        await asyncio.to_thread(released.wait, WAIT_S)

    monkeypatch.setattr(bulk, "decide_page", slow)
    monkeypatch.setattr(pending_hits, "PAGE_HITS_MAX", 20)
    browser.open(f"{accounts.url}/console/timers?topic=winter-sale")
    browser.tab_to("#bulk\\.list")
    submit(browser)
    browser.wait_for("Type the number of messages")
    check_page(browser, axe)
    browser.tab_to("input[name=count]")
    browser.type(str(MESSAGES))
    submit(browser)
    browser.wait_for("20 / 30")
    check_page(browser, axe)
    browser.tab_to("#bulk\\.stop")
    submit(browser, "It stops after the request in progress.")
    released.set()
    browser.wait_for("Messages without a result were not touched.")
    assert "not decided" in browser.source
    browser.open(f"{accounts.url}/console/bulk")
    check_page(browser, axe)


@pytest.mark.extended
def test_a_schedule_is_created_and_changed_by_keyboard(
    browser: Browser, axe: str, accounts: Served
) -> None:
    browser.open(f"{accounts.url}/console/new-schedule")
    values = {"name": "report", "topic": "spring-sale", "cron": "0 9 * * MON"}
    for name, value in values.items():
        browser.tab_to(f"input[name={name}]")
        browser.type(value)
    submit(browser, "Next runs")
    check_page(browser, axe)
    browser.tab_to("#schedule\\.create")
    submit(browser, "Send past occurrences again")
    check_page(browser, axe)
    browser.tab_to("input[name=note]")
    browser.type("until Friday")
    submit(browser, "until the schedule is resumed")
    check_page(browser, axe)
    browser.tab_to("#schedule\\.pause")
    submit(browser, "Resume")
    assert "until Friday" in browser.source
    for change in ("resume", "trigger", "delete"):
        browser.open(f"{accounts.url}/console/schedule-changes?name=report&change={change}")
        browser.tab_to(f"#schedule\\.{change}")
        submit(browser)
        assert browser.faults() == []
    browser.open(f"{accounts.url}/console/schedules")
    assert "report" not in browser.source
    check_page(browser, axe)


@pytest.mark.extended
def test_the_axis_is_zoomed_by_keyboard_and_by_its_bars(
    browser: Browser, axe: str, accounts: Served
) -> None:
    browser.open(f"{accounts.url}/console/?span=1d&capacity=1")
    check_page(browser, axe)
    browser.tab_to("a[href*='span=6h'][href*='at=']")
    submit(browser)
    assert "span=6h" in browser.url
    browser.resize(max(WIDTHS))
    with browser.next_page():
        browser.click("svg a .hit >> nth=-1")
    assert "span=10min" in browser.url
    assert browser.faults() == []
