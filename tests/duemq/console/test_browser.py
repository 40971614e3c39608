"""The console in a browser: every page is accessible, loads without faults, and fits the screen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.duemq.console.rig import Served

PAGES = ("/", "/?span=1y")
WIDTHS = (1_400, 390)
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
RUN = "const done = arguments[arguments.length - 1]; axe.run(document, arguments[0]).then(done);"


def resized(browser: Any, width: int, height: int = 900) -> None:
    """Set the size of the page, below the minimum width of a window too."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def faults_of(browser: Any) -> list[str]:
    """Return what the browser reports: errors of scripts, refusals by the policy, failed loads."""
    return [entry["message"] for entry in browser.get_log("browser")]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_and_fit(
    browser: Any, axe: str, shared_console: Served, path: str, scheme: str, width: int
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    resized(browser, width)
    browser.get(f"{shared_console.url}/console{path}")
    assert faults_of(browser) == []
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= width
    browser.execute_script(axe)
    result = browser.execute_async_script(RUN, RULES)
    violations = [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in result["violations"]
        for node in one["nodes"]
    ]
    assert violations == []
    assert result["passes"]


def test_a_page_is_sent_again_when_it_changes(browser: Any, shared_console: Served) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"{shared_console.url}/console/")
    browser.execute_script("document.querySelector('#blocks').firstElementChild.dataset.former = 1")
    replaced = "return !document.querySelector('#blocks [data-former]')"
    WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(replaced))
    assert browser.execute_script("return document.querySelectorAll('#blocks table').length") == 3
    assert faults_of(browser) == []
