"""Pages about the operation of brokers in a browser: accessible, also on small screens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from duemq.broker.broker import Broker
from tests.duemq.console import test_audit_pages, test_operating_pages
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.duemq.console.test_browser import faults_of, next_page, resized, violations_of
from tests.support.accounts import ROOT

pytestmark = pytest.mark.usefixtures("left_page")
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
VIEWPORTS = ((1_400, "light", "en"), (360, "dark", "zh"))


async def prepared(broker: Broker) -> None:
    """Prepare something for every page."""
    await test_operating_pages.prepared(broker)
    test_audit_pages.add_audit(broker)


@pytest.fixture(scope="module")
def logged_in(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker, with a login of an administrator in the browser."""
    from selenium.webdriver.common.by import By

    with served(tmp_path_factory.mktemp("pages"), prepared, **ACCOUNT_KEYS) as running:
        browser.get(f"{running.url}/console/login")
        for name, text in (("access_key", ROOT.access_key), ("secret", ROOT.secret)):
            browser.find_element(By.NAME, name).send_keys(text)
        with next_page(browser):
            browser.find_element(By.CSS_SELECTOR, 'form[action$="/login"] button').click()
        yield running
        browser.delete_all_cookies()


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_and_fit(
    browser: Any, axe: str, logged_in: Served, path: str, seed: int
) -> None:
    """The day chooses the first page of each view; the next page has the other view."""
    broker = quote(logged_in.broker.config.broker_name, safe="")
    width, scheme, language = VIEWPORTS[(seed + PAGES.index(path)) % 2]
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.add_cookie({"name": "duemq_language", "value": language, "path": "/console"})
    resized(browser, width)
    browser.get(f"{logged_in.url}/console{path.format(broker=broker)}")
    assert f'<html lang="{language}">' in browser.page_source[:200]
    assert browser.find_elements("css selector", "#blocks section, #blocks form")
    assert faults_of(browser) == []
    assert violations_of(browser, axe) == [], (path, width)
    wide = "return document.documentElement.scrollWidth"
    for width in (360, 390, 1_400):
        resized(browser, width)
        assert browser.execute_script(wide) <= width


def test_tables_and_commands_are_reached_with_the_keyboard(browser: Any, logged_in: Served) -> None:
    broker = quote(logged_in.broker.config.broker_name, safe="")
    browser.get(f"{logged_in.url}/console/migrations/{broker}")
    script = """
        const reached = [...document.querySelectorAll('a, button, input, select, [tabindex="0"]')];
        return reached.every(one => one.type === 'hidden' || one.tabIndex >= 0);
    """
    assert browser.execute_script(script)
