"""The console in a browser: every page is accessible, loads without faults, and fits the screen."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.support.accounts import ROOT
from tests.support.browser import HAS_FOCUS, Browser, Chromium, Scheme
from tests.support.running_broker import TIMEOUT_S

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
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
VIEWS = tuple(itertools.product(SCHEMES, WIDTHS))  # the day chooses one of each scheme
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
RUN = "rules => axe.run(document, rules)"
FULL_WIDTH = "document.documentElement.scrollWidth"


def violations_of(browser: Browser, axe: str) -> list[str]:
    """Return the faults of the page that axe reports, and ids that two elements have."""
    if not browser.evaluate("'axe' in window"):
        browser.evaluate(axe)
    result = browser.evaluate(RUN, RULES)
    assert result["passes"]
    ids = browser.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    return [f"two have the id {one}" for one in set(ids) if ids.count(one) > 1] + [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in result["violations"]
        for node in one["nodes"]
    ]


async def with_pending_message(broker: Broker) -> None:
    """Send a message that is due in an hour."""
    address = f"127.0.0.1:{broker.port}"
    async with Producer(broker=address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        await producer.send(Message("T", b"b", keys=["campaign"], delay=timedelta(hours=1)))


@pytest.mark.sampled
@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_and_fit(
    browser: Browser, axe: str, shared_console: Served, path: str, seed: int
) -> None:
    """A page is loaded once, and shown with each colour scheme and width."""
    browser.open(f"{shared_console.url}/console{path}")
    for scheme, width in (VIEWS[seed % 2], VIEWS[3 - seed % 2]):
        browser.emulate(scheme)
        browser.resize(width)
        assert browser.evaluate(FULL_WIDTH) <= width, scheme
        assert violations_of(browser, axe) == [], (scheme, width)
    assert browser.faults() == []


def test_a_decision_is_confirmed_in_the_browser(
    chromium: Chromium, axe: str, tmp_path: Path
) -> None:
    def press(selector: str) -> None:
        with browser.next_page():
            browser.click(f"{selector} button")
        assert violations_of(browser, axe) == []
        assert browser.faults() == []

    with (
        served(tmp_path, with_pending_message, **ACCOUNT_KEYS) as running,
        chromium.page() as browser,
    ):
        browser.resize(min(WIDTHS))
        browser.open(f"{running.url}/console/messages/campaign")
        browser.fill({"access_key": ROOT.access_key, "secret": ROOT.secret})
        press('form[action$="/login"]')
        press('form[action$="/decisions"]')
        press('form[action$="/decisions"]')
        assert "The broker stored the decision." in browser.source


def test_a_page_is_sent_again_when_it_changes(browser: Browser, shared_console: Served) -> None:
    """The focus of the keyboard stays, and so does the text of an input."""
    browser.open(f"{shared_console.url}/console/")
    browser.fill({"capacity": "25"})
    longer = "a[href*='span=6h'][href*='at=']"
    browser.tab_to(longer)
    browser.evaluate("document.querySelector('#blocks').firstElementChild.dataset.former = 1")
    browser.wait_without("#blocks [data-former]")
    assert browser.evaluate(HAS_FOCUS, longer)
    assert browser.evaluate("document.querySelector('[name=capacity]').value") == "25"
    assert browser.evaluate("document.querySelectorAll('#blocks table').length") == 3
    assert browser.faults() == []


def test_faults_of_a_page_are_reported(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>alert(1); console.info('text'); undefined.name</script><img src=lost>")
    browser.open(page.as_uri())
    kinds = ("dialog: 1", "text", "Cannot read properties", "net::ERR_FILE_NOT_FOUND")
    faults = browser.faults()
    assert [any(kind in fault for fault in faults) for kind in kinds] == [True] * 4, faults
