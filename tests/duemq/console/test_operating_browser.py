"""Pages about the operation of brokers in a browser: accessible, also on small screens."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from duemq.broker.broker import Broker
from tests.duemq.console import test_audit_pages, test_operating_pages
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.duemq.console.test_browser import FULL_WIDTH, violations_of
from tests.support.accounts import ROOT
from tests.support.browser import Browser, Scheme

PAGES = (
    "/levels",
    "/migrations",
    "/migrations/{broker}",
    "/migration-commands?broker={broker}&action=plan&levels=18",
    "/migration-commands?broker={broker}&action=throttle&rate=100",
    "/quarantine",
    "/quarantine/test%2F0",
    "/quarantine-resend?name=test%2F0&topic=kept",
    "/dead-letters",
    "/dead-letters/readers",
    "/dead-letter-resend?group=readers&name=test%2F0",
    "/audits",
    "/audits/audit-1?broker={broker}",
    "/replicas",
    "/configuration?shown=all&prefix=broker",
    "/operators",
)
BROKEN_CODES = """
    [...document.querySelectorAll('td code')]
        .filter(one => one.textContent.length <= 24)
        .filter(one => one.offsetHeight > 1.9 * parseFloat(getComputedStyle(one).lineHeight))
        .map(one => one.textContent)
"""  # short ones in more than one line
VIEWPORTS: tuple[tuple[int, Scheme, str], ...] = ((1_400, "light", "en"), (360, "dark", "zh"))


async def prepared(broker: Broker) -> None:
    """Prepare something for every page."""
    await test_operating_pages.prepared(broker)
    test_audit_pages.add_audits(broker)


@pytest.fixture(scope="module")
def logged_in(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker, with a login of an administrator in the browser."""
    with served(tmp_path_factory.mktemp("pages"), prepared, **ACCOUNT_KEYS) as running:
        browser.open(f"{running.url}/console/login")
        browser.fill({"access_key": ROOT.access_key, "secret": ROOT.secret})
        with browser.next_page():
            browser.click('form[action$="/login"] button')
        yield running


@pytest.mark.sampled
@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_and_fit(
    browser: Browser, axe: str, logged_in: Served, path: str, seed: int
) -> None:
    """The day chooses the first page of each view; the next page has the other view."""
    broker = quote(logged_in.broker.config.broker_name, safe="")
    width, scheme, language = VIEWPORTS[(seed + PAGES.index(path)) % 2]
    browser.set_cookie("duemq_language", language, f"{logged_in.url}/console/")
    browser.open(f"{logged_in.url}/console{path.format(broker=broker)}")
    browser.emulate(scheme)
    browser.resize(width)
    assert f'<html lang="{language}">' in browser.source[:200]
    assert browser.evaluate("!!document.querySelector('#blocks section, #blocks form')")
    assert browser.faults() == []
    assert violations_of(browser, axe) == [], (path, width)
    for width in (360, 390, 1_400):
        browser.resize(width)
        assert browser.evaluate(FULL_WIDTH) <= width
        assert browser.evaluate(BROKEN_CODES) == []


def test_tables_and_commands_are_reached_with_the_keyboard(
    browser: Browser, logged_in: Served
) -> None:
    broker = quote(logged_in.broker.config.broker_name, safe="")
    browser.open(f"{logged_in.url}/console/migrations/{broker}")
    script = """
        [...document.querySelectorAll('a, button, input, select, [tabindex="0"]')]
            .every(one => one.type === 'hidden' || one.tabIndex >= 0)
    """
    assert browser.evaluate(script)
