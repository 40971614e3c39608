"""Pictures of the console for the documentation.

python -m tests.duemq.console.screenshots [folder]

Each page is shown at 1400 and at 390 px, as a PNG with a palette. The command is no test: pictures
change with times and with the version of the browser.
"""

from __future__ import annotations

import io
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, PendingDecisions, Producer
from recurring_schedules.definition import Definition
from tests.duemq.client.admin.test_admin import make_dead_letter
from tests.duemq.console.rig import ACCOUNT_KEYS, served
from tests.support.accounts import ROOT
from tests.support.browser import Browser, Chromium

FOLDER: Final = Path(__file__).parents[3] / "docs" / "figures"
WIDTHS: Final = {1_400: 900, 390: 844}
BYTES_MAX: Final = 100_000
COLOURS: Final = 64
MESSAGES: Final = 240
PAGES: Final = {
    "overview": "/?span=6h",
    "timers": "/timers?topic=winter-sale",
    "message": "/messages/order-7",
    "levels": "/levels",
    "migrations": "/migrations",
    "configuration": "/configuration",
    "quarantine": "/quarantine",
    "dead-letters": "/dead-letters/mailers",
    "replicas": "/replicas",
    "schedule": "/schedules/weekly-report",
    "new-schedule": (
        "/new-schedule?name=payday&topic=reports&cron=0+9+1+*+*&zone=Europe%2FBerlin&body=pay"
    ),
}


async def with_messages(broker: Broker) -> None:
    """Send a campaign and other timers, deliver some, and create a schedule."""
    address = f"127.0.0.1:{broker.port}"
    async with Producer(broker=address, credentials=ROOT) as producer:
        for number in range(MESSAGES):
            delay = timedelta(minutes=number * 17 % 240 + 1, seconds=number % 60)
            topic = "winter-sale" if number % 3 else "orders"
            message = Message(topic, b"{}", keys=[f"order-{number}"], tag="mail", delay=delay)
            await producer.send(message)
        for number in range(40):
            await producer.send(Message("orders", b"{}", delay=timedelta(milliseconds=10 * number)))
        await producer.send(Message("reports", b"{}"))
    async with Admin(broker=address, credentials=ROOT) as admin:
        weekly = Definition(
            name="weekly-report",
            topic="reports",
            cron="0 9 * * MON",
            zone="Europe/Berlin",
            body=b"weekly",
        )
        await admin.create_schedule(weekly)
        await with_undelivered(admin)


async def with_undelivered(admin: Admin) -> None:
    """Store messages in quarantine and dead letters."""
    async with Producer(client=admin.client) as producer:
        hour = timedelta(hours=1)
        sent = [
            await producer.send(Message("closed-shop", b"{}", keys=[f"order-{number}"], delay=hour))
            for number in range(5)
        ]
        await admin.delete_topic("closed-shop")
        await PendingDecisions(client=admin.client).fire(ids=[one.message_id for one in sent])
        await admin.create_group("mailers")
        for _ in range(3):
            await make_dead_letter(admin, "mailers", "reports")


def save(browser: Browser, folder: Path, name: str) -> None:
    """Save pictures of the present page at each width."""
    from PIL import Image

    for width, height in WIDTHS.items():
        browser.resize(width, height)
        image = Image.open(io.BytesIO(browser.screenshot())).convert("RGB")
        path = folder / f"console-{name}-{width}.png"
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        size = path.stat().st_size
        if size > BYTES_MAX:
            sys.exit(f"{path} has more than {BYTES_MAX:,} bytes")


def bulk_pictures(browser: Browser, url: str, folder: Path) -> None:
    """Save pictures of the confirmation of a bulk decision and of its results."""
    browser.open(f"{url}/console/timers?topic=winter-sale")
    with browser.next_page():
        browser.click("#bulk\\.list")
    browser.wait_for("Type the number of messages")
    save(browser, folder, "bulk-confirmation")
    browser.fill({"count": str(MESSAGES * 2 // 3)})
    with browser.next_page():
        browser.press("Enter")
    browser.wait_for("Each message has a result.")
    save(browser, folder, "bulk-results")


def resend_picture(browser: Browser, url: str, folder: Path) -> None:
    """Save pictures of the confirmation of a bulk resend."""
    browser.open(f"{url}/console/dead-letters/mailers")
    with browser.next_page():
        browser.click("#bulk\\.list")
    browser.wait_for("Type the number of messages")
    save(browser, folder, "bulk-resend")


def main(folder: Path) -> None:
    """Save the pictures of all pages."""
    with (
        tempfile.TemporaryDirectory() as directory,
        served(Path(directory) / "broker", with_messages, **ACCOUNT_KEYS) as running,
        Chromium() as chromium,
        chromium.page() as browser,
    ):
        browser.open(f"{running.url}/console/")
        browser.fill({"access_key": ROOT.access_key, "secret": ROOT.secret})
        with browser.next_page():
            browser.press("Enter")
        for name, path in PAGES.items():
            browser.open(f"{running.url}/console{path}")
            save(browser, folder, name)
        bulk_pictures(browser, running.url, folder)
        resend_picture(browser, running.url, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
