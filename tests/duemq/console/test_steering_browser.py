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
from tests.duemq.console.test_browser import faults_of, next_page, resized, violations_of
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("left_page")
WIDTHS = (1_400, 390, 360)
MESSAGES = 30
WAIT_S = 30
HAS_FOCUS = "return document.activeElement.matches(arguments[0])"
STEPS = """
    const kinds = 'a[href], button, input, select, textarea, summary';
    const stops = [...document.querySelectorAll(kinds)]
        .filter(one => one.tabIndex >= 0 && !one.disabled && one.type !== 'hidden');
    const target = stops.findIndex(one => one.matches(arguments[0]));
    return target - stops.indexOf(document.activeElement) - 2;
"""  # nearly all, in one request; each single key takes three
STEPS_MORE = 60


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
def accounts(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[Served]:
    """Console of a broker with accounts; the browser is logged in."""
    from selenium.webdriver.common.by import By

    root = tmp_path_factory.mktemp("steering")
    with served(root, with_campaigns, **ACCOUNT_KEYS) as running:
        browser.get(f"{running.url}/console/")
        browser.find_element(By.NAME, "access_key").send_keys(ROOT.access_key)
        browser.find_element(By.NAME, "secret").send_keys(ROOT.secret, "\n")
        wait_for(browser, "Log out")
        yield running


def check_page(browser: Any, axe: str) -> None:
    """Check that the page has no faults and is accessible, and fits each screen."""
    assert faults_of(browser) == []
    for width in WIDTHS:
        resized(browser, width)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
    assert violations_of(browser, axe) == []


def focused(browser: Any, selector: str) -> Any:
    """Press the Tab key until an element has the focus, and return it."""
    from selenium.webdriver.common.keys import Keys

    steps = browser.execute_script(STEPS, selector)
    for count in (max(steps, 1), *[1] * STEPS_MORE):
        browser.switch_to.active_element.send_keys(Keys.TAB * count)
        if browser.execute_script(HAS_FOCUS, selector):
            return browser.switch_to.active_element
    raise AssertionError(f"the Tab key does not reach {selector}")


def wait_for(browser: Any, text: str) -> None:
    """Wait until the page has a text."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, WAIT_S).until(lambda driver: text in driver.page_source)


def test_all_hits_are_cancelled_by_keyboard(
    browser: Any, axe: str, accounts: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, decide = threading.Event(), bulk.decide_page

    async def slow(*arguments: Any) -> None:
        await decide(*arguments)
        await asyncio.to_thread(released.wait, WAIT_S)

    monkeypatch.setattr(bulk, "decide_page", slow)
    monkeypatch.setattr(pending_hits, "PAGE_HITS_MAX", 20)
    browser.get(f"{accounts.url}/console/timers?topic=winter-sale")
    focused(browser, "#bulk\\.list").send_keys("\n")
    wait_for(browser, "Type the number of messages")
    check_page(browser, axe)
    focused(browser, "input[name=count]").send_keys(str(MESSAGES), "\n")
    wait_for(browser, "20 / 30")
    check_page(browser, axe)
    focused(browser, "#bulk\\.stop").send_keys("\n")
    wait_for(browser, "It stops after the request in progress.")
    released.set()
    wait_for(browser, "Messages without a result were not touched.")
    assert "not decided" in browser.page_source
    browser.get(f"{accounts.url}/console/bulk")
    check_page(browser, axe)


def test_a_schedule_is_created_and_changed_by_keyboard(
    browser: Any, axe: str, accounts: Served
) -> None:
    browser.get(f"{accounts.url}/console/new-schedule")
    values = {"name": "report", "topic": "spring-sale", "cron": "0 9 * * MON"}
    for name, value in values.items():
        focused(browser, f"input[name={name}]").send_keys(value)
    browser.switch_to.active_element.send_keys("\n")
    wait_for(browser, "Next runs")
    check_page(browser, axe)
    focused(browser, "#schedule\\.create").send_keys("\n")
    wait_for(browser, "Send past occurrences again")
    check_page(browser, axe)
    focused(browser, "input[name=note]").send_keys("until Friday", "\n")
    wait_for(browser, "until the schedule is resumed")
    check_page(browser, axe)
    focused(browser, "#schedule\\.pause").send_keys("\n")
    wait_for(browser, "Resume")
    assert "until Friday" in browser.page_source
    for change in ("resume", "trigger", "delete"):
        browser.get(f"{accounts.url}/console/schedule-changes?name=report&change={change}")
        with next_page(browser):
            focused(browser, f"#schedule\\.{change}").send_keys("\n")
        assert faults_of(browser) == []
    browser.get(f"{accounts.url}/console/schedules")
    assert "report" not in browser.page_source
    check_page(browser, axe)


def test_the_axis_is_zoomed_by_keyboard_and_by_its_bars(
    browser: Any, axe: str, accounts: Served
) -> None:
    from selenium.webdriver.common.by import By

    browser.get(f"{accounts.url}/console/?span=1d&capacity=1")
    check_page(browser, axe)
    with next_page(browser):
        focused(browser, "a[href*='span=6h'][href*='at=']").send_keys("\n")
    assert "span=6h" in browser.current_url
    resized(browser, max(WIDTHS))
    bars = browser.find_elements(By.CSS_SELECTOR, "svg a .hit")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bars[-1])
    with next_page(browser):
        bars[-1].click()
    assert "span=10min" in browser.current_url
    assert faults_of(browser) == []
