"""Brokers with consoles that several tests share, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, Producer, PullConsumer
from tests.duemq.console.rig import Served, served
from tests.support.requirements import Missing, need_commands, skip_without

HOSTILE = '<script>document.title="broken"</script><img src=x onerror=alert(1)>'


async def filled(broker: Broker) -> None:
    """Send pending messages, some with markup in every text, and deliver some."""
    address = f"127.0.0.1:{broker.port}"
    async with Producer(broker=address) as producer:
        for number in range(30):
            delay = timedelta(minutes=number + 1)
            await producer.send(Message("orders", b"b", keys=[f"k{number}"], delay=delay))
        hour = timedelta(hours=1)
        properties = {"note": HOSTILE}
        message = Message(
            "orders",
            HOSTILE.encode(),
            keys=["<b>k</b>"],
            tag="<i>",
            delay=hour,
            properties=properties,
        )
        await producer.send(message)
        await producer.send(Message("orders", b"now", delay=timedelta(milliseconds=10)))
        await producer.send(Message("orders", b"level", level=10))
        await producer.send(Message("orders", b"stored"))
    async with Admin(broker=address) as admin:
        await admin.create_group("readers")
    async with PullConsumer(group="readers", broker=address) as consumer:
        for queue in await consumer.queues("orders"):
            await consumer.commit(queue, 0)


@pytest.fixture(scope="module")
def shared_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker without accounts; tests change nothing."""
    with served(tmp_path_factory.mktemp("console"), filled) as running:
        yield running


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
