"""A browser, and the checker of accessibility that runs in its pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.requirements import Missing, need_commands, skip_without


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, driven by Selenium."""
    with skip_without():
        need_commands("chromium", "chromedriver")
        try:
            from selenium import webdriver
        except ImportError as error:
            raise Missing(f"not installed: {error.name}") from error
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    profile = tmp_path_factory.mktemp("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def left_page(browser: Any) -> None:
    """Leave the page of another file, whose server has stopped, and drop its faults."""
    browser.get("about:blank")
    browser.get_log("browser")


@pytest.fixture(scope="session")
def axe() -> str:
    """Source of axe, which checks the accessibility of a page."""
    from tests.duemq.console.axe import axe_source

    with skip_without():
        return axe_source()
