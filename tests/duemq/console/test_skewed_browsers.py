"""Browsers with another clock and another time zone, and two operators at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, Producer
from tests.duemq.console.rig import ACCOUNT_KEYS, OPERATOR, Served, served, with_accounts
from tests.support.accounts import ROOT
from tests.support.browser import Browser, Chromium
from tests.support.running_broker import TIMEOUT_S

YEAR_MS = 365 * 86_400_000
MESSAGES = 12
LATER = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)


async def prepared(broker: Broker) -> None:
    """Create accounts, and pending messages."""
    await with_accounts(broker)
    async with Producer(broker=broker.address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        for number in range(MESSAGES):
            hour = timedelta(hours=1, seconds=number)
            await producer.send(Message("both", b"b", keys=[f"k{number}"], delay=hour))
        await producer.send(Message("moved", b"b", keys=["moved"], delay=timedelta(hours=1)))


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and pending messages."""
    with served(tmp_path_factory.mktemp("skewed"), prepared, **ACCOUNT_KEYS) as running:
        yield running


def log_in(browser: Browser, running: Served, path: str, account: str, secret: str) -> None:
    """Open a page with a login."""
    browser.open(f"{running.url}/console{path}")
    browser.fill({"access_key": account, "secret": secret})
    with browser.next_page():
        browser.press("Enter")


def submit(browser: Browser, selector: str) -> None:
    """Click a button, and wait for the next page."""
    with browser.next_page():
        browser.click(selector)
    assert browser.faults() == []


@pytest.mark.extended
@pytest.mark.parametrize("skew_ms", [-YEAR_MS, YEAR_MS])
def test_times_are_those_of_the_broker(chromium: Chromium, accounts: Served, skew_ms: int) -> None:
    """Neither the clock of the browser nor its zone changes what a page shows and does."""
    to = LATER + timedelta(days=skew_ms // YEAR_MS)
    with chromium.page(timezone_id="Asia/Shanghai") as browser:
        browser.set_clock(int(datetime.now(UTC).timestamp() * 1_000) + skew_ms)
        log_in(browser, accounts, "/messages/moved", ROOT.access_key, ROOT.secret)
        year = int(browser.evaluate("new Date().getFullYear()"))
        assert abs(year - datetime.now(UTC).year) == 1
        assert browser.evaluate("new Date().getTimezoneOffset()") == -480
        browser.fill({"to": f"{to:%Y-%m-%dT%H:%M:%S}"})
        submit(browser, "form:has([value=move]) button")
        assert f"{to:%Y-%m-%d %H:%M:%S}" in browser.source
        assert "delivered at once" not in browser.source
        submit(browser, "form[method=post][action$='/decisions'] button")
        assert "The broker stored the decision." in browser.source
        browser.open(f"{accounts.url}/console/timers?topic=moved")
        assert f"{to:%Y-%m-%d %H:%M:%S}" in browser.source
        browser.open(f"{accounts.url}/console/")
        today = browser.evaluate("document.querySelector('#blocks').textContent")
        assert f"{datetime.now(UTC):%Y-%m-%d}" in today
        assert browser.faults() == []


@pytest.mark.extended
def test_two_operators_cancel_the_same_messages(chromium: Chromium, accounts: Served) -> None:
    """Each has a list; the second one gets a result that names the decision of the first one."""
    with chromium.page() as first, chromium.page() as second:
        operators = ((first, OPERATOR), (second, ROOT))
        for browser, account in operators:
            path = "/timers?topic=both"
            log_in(browser, accounts, path, account.access_key, account.secret)
            submit(browser, "#bulk\\.list")
            browser.wait_for("Type the number of messages")
        for browser, _ in operators:
            browser.fill({"count": str(MESSAGES)})
            submit(browser, "#bulk\\.cancel")
            browser.wait_for("Each message has a result.")
        results = "[...document.querySelectorAll('a[href*=\"verdict=\"]')].map(a => a.href)"
        assert [url.rpartition("=")[2] for url in first.evaluate(results)] == ["done"]
        assert [url.rpartition("=")[2] for url in second.evaluate(results)] == ["before"]
        first.open(f"{accounts.url}/console/timers?topic=both")
        assert "There are none" in first.source
