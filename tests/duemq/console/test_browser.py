"""The console in a browser: every page is accessible, loads without faults, and fits the screen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("left_page")
HOSTILE_MESSAGE = "/messages/%3Cb%3Ek%3C%2Fb%3E"
PAGES = (
    "/",
    "/?span=1y",
    "/topics",
    "/groups",
    "/groups/readers",
    "/schedules",
    "/timers",
    "/timers?key=missing",
    HOSTILE_MESSAGE,
)
WIDTHS = (1_400, 390)
VIEWS = tuple(itertools.product(("light", "dark"), WIDTHS))  # the day chooses one of each scheme
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
RUN = "const done = arguments[arguments.length - 1]; axe.run(document, arguments[0]).then(done);"


def resized(browser: Any, width: int, height: int = 900) -> None:
    """Set the size of the page, below the minimum width of a window too."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def violations_of(browser: Any, axe: str) -> list[str]:
    """Return the faults of the page that axe reports."""
    if not browser.execute_script("return 'axe' in window"):
        browser.execute_script(axe)
    result = browser.execute_async_script(RUN, RULES)
    assert result["passes"]
    return [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in result["violations"]
        for node in one["nodes"]
    ]


@contextmanager
def next_page(browser: Any) -> Iterator[None]:
    """Wait after the block until the browser has left the page."""
    from selenium.webdriver.support.expected_conditions import staleness_of
    from selenium.webdriver.support.wait import WebDriverWait

    document = browser.find_element("tag name", "html")
    yield
    WebDriverWait(browser, 30).until(staleness_of(document))


async def with_pending_message(broker: Broker) -> None:
    """Send a message that is due in an hour."""
    address = f"127.0.0.1:{broker.port}"
    async with Producer(broker=address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        await producer.send(Message("T", b"b", keys=["campaign"], delay=timedelta(hours=1)))


def faults_of(browser: Any) -> list[str]:
    """Return what the browser reports: errors of scripts, refusals by the policy, failed loads."""
    return [entry["message"] for entry in browser.get_log("browser")]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_and_fit(
    browser: Any, axe: str, shared_console: Served, path: str, seed: int
) -> None:
    """A page is loaded once, and shown with each colour scheme and width."""
    browser.get(f"{shared_console.url}/console{path}")
    for scheme, width in (VIEWS[seed % 2], VIEWS[3 - seed % 2]):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        resized(browser, width)
        wide = "return document.documentElement.scrollWidth"
        assert browser.execute_script(wide) <= width, scheme
        assert violations_of(browser, axe) == [], (scheme, width)
    assert faults_of(browser) == []


def test_a_decision_is_confirmed_in_the_browser(browser: Any, axe: str, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    def press(selector: str) -> None:
        with next_page(browser):
            browser.find_element(By.CSS_SELECTOR, f"{selector} button").click()
        assert violations_of(browser, axe) == []
        assert faults_of(browser) == []

    resized(browser, min(WIDTHS))
    with served(tmp_path, with_pending_message, **ACCOUNT_KEYS) as running:
        browser.get(f"{running.url}/console/messages/campaign")
        for name, text in (("access_key", ROOT.access_key), ("secret", ROOT.secret)):
            browser.find_element(By.NAME, name).send_keys(text)
        press('form[action$="/login"]')
        press('form[action$="/decisions"]')
        press('form[action$="/decisions"]')
        assert "The broker stored the decision." in browser.page_source


def test_a_page_is_sent_again_when_it_changes(browser: Any, shared_console: Served) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"{shared_console.url}/console/")
    browser.execute_script("document.querySelector('#blocks').firstElementChild.dataset.former = 1")
    replaced = "return !document.querySelector('#blocks [data-former]')"
    WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(replaced))
    assert browser.execute_script("return document.querySelectorAll('#blocks table').length") == 3
    assert faults_of(browser) == []
