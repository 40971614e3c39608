"""Actions of the console by clicks in a browser: confirmed, and carried out by the broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Client, Message, Producer, PullConsumer
from duemq.client.admin.migrations import LevelMigration
from duemq.client.admin.topics import TopicSettings
from duemq.client.bulk_decisions import BulkDecisions, PendingSearch
from recurring_schedules.definition import Definition
from tests.duemq.console import test_resend_pages
from tests.duemq.console.rig import ACCOUNT_KEYS, Served, served
from tests.duemq.console.test_bulk import LATER
from tests.duemq.console.test_resend_pages import MESSAGES
from tests.support.accounts import ROOT
from tests.support.browser import Browser
from tests.support.running_broker import TIMEOUT_S

HOUR = timedelta(hours=1)
ACTIONS = ("cancel", "move", "fire")
LEVEL, LEVEL_MESSAGES = 18, 100
SCHEDULE = "report"


async def prepared(broker: Broker) -> None:
    """Create messages for each action, and a schedule."""
    await test_resend_pages.prepared(broker)
    async with (
        Producer(broker=broker.address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer,
        Admin(broker=broker.address, credentials=ROOT) as admin,
    ):
        for action in ACTIONS:
            await producer.send(Message(f"one-{action}", b"one", keys=[action], delay=HOUR))
            for number in range(MESSAGES):
                await producer.send(Message(f"all-{action}", b"%d" % number, delay=HOUR))
        for _ in range(LEVEL_MESSAGES):
            await producer.send(Message("levels", b"level", level=LEVEL))
        await admin.create_topic("reports", TopicSettings(read_queues=1, write_queues=1))
        await admin.create_schedule(
            Definition(name=SCHEDULE, topic="reports", cron="0 6 * * *", body=b"now")
        )


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Served]:
    """Console of a broker with accounts; the browser is logged in as an administrator."""
    with served(tmp_path_factory.mktemp("actions"), prepared, **ACCOUNT_KEYS) as running:
        browser.open(f"{running.url}/console/login")
        browser.fill({"access_key": ROOT.access_key, "secret": ROOT.secret})
        press(browser, 'form[action$="/login"] button')
        yield running


def press(browser: Browser, selector: str, text: str = "") -> None:
    """Click a button, and check that the next page has a text and no faults."""
    with browser.next_page():
        browser.click(selector)
    assert text in browser.source
    assert browser.faults() == []


def confirm(browser: Browser, text: str) -> None:
    """Click the button of the confirmation, and check that the next page has a text."""
    assert "<h2>Confirm</h2>" in browser.source
    press(browser, 'form[method="post"]:has(> input[name="csrf"]) button[id]', text)


def result_counts(browser: Browser) -> dict[str, int]:
    """Return the number of messages by result, as the page of a bulk decision shows it."""
    pairs = re.findall(r'\?verdict=(\w+)".*?<td class="number">([\d,]+)', browser.source, re.S)
    return {verdict: int(number) for verdict, number in pairs}


def decide_on_all(browser: Browser, action: str, done: int, others: int = 0) -> None:
    """List the hits of the search on the page, confirm their number, and check each result.

    Args:
        others: Number of messages of the search that were sent again before.
    """
    press(browser, "#bulk\\.list")
    browser.wait_for("Type the number of messages")
    assert f"<dt>Messages</dt><dd>{done + others}" in browser.source
    browser.fill({"count": str(done)})
    press(browser, f"#bulk\\.{action}")
    browser.wait_for("Each message has a result.")
    assert f"{done + others} / {done + others}" in browser.source
    assert result_counts(browser) == {"done": done} | ({"before": others} if others else {})
    press(browser, 'a[href$="verdict=done"]')
    results = browser.evaluate(
        "[...document.querySelectorAll('tbody tr')].map(one => one.innerText)"
    )
    assert sum(1 for row in results if row.rstrip().endswith("done")) == done, results
    assert browser.faults() == []


async def due_times(broker: Broker, topic: str) -> list[datetime]:
    """Return the due times of the pending messages of a topic."""
    times = list[int]()
    async with Client(broker=broker.address, credentials=ROOT) as client:
        async for _, hits in BulkDecisions(client).search(PendingSearch(topic=topic)):
            times += hits.due_ms
    return [datetime.fromtimestamp(due_ms / 1_000, UTC) for due_ms in times]


async def delivered(broker: Broker, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Return the bodies of a topic's messages from an offset on, when it has that many."""
    async with PullConsumer(group="readers", broker=broker.address, credentials=ROOT) as consumer:
        [queue], bodies = await consumer.queues(topic), list[bytes]()
        while len(bodies) < count:
            pulled = await consumer.pull(queue, first + len(bodies))
            bodies += [message.body for message in pulled.messages]
        assert await consumer.max_offset(queue) == first + count
    return bodies


def check_decided(console: Served, topic: str, action: str, bodies: list[bytes]) -> None:
    """Check that the broker carried out an action on the messages of a topic."""
    later = datetime.fromisoformat(LATER).replace(tzinfo=UTC)
    expected = [later] * len(bodies) if action == "move" else []
    assert console.run(due_times(console.broker, topic)) == expected
    if action == "fire":
        assert sorted(console.run(delivered(console.broker, topic, len(bodies)))) == bodies


@pytest.mark.parametrize("action", ACTIONS)
def test_a_decision_about_one_message_is_clicked(
    browser: Browser, console: Served, action: str
) -> None:
    browser.open(f"{console.url}/console/messages/{action}")
    if action == "move":
        browser.fill({"to": LATER})
    press(browser, f'form:has([name="action"][value="{action}"]) button')
    confirm(browser, "The broker stored the decision.")
    check_decided(console, f"one-{action}", action, [b"one"])


@pytest.mark.parametrize("action", ACTIONS)
def test_a_decision_about_all_hits_is_clicked(
    browser: Browser, console: Served, action: str
) -> None:
    browser.open(f"{console.url}/console/timers")
    browser.fill({"topic": f"all-{action}"})
    press(browser, 'form[method="get"][action$="/timers"] button')
    browser.choose("action", action)
    if action == "move":
        browser.fill({"to": LATER})
    decide_on_all(browser, action, MESSAGES)
    check_decided(console, f"all-{action}", action, [b"%d" % n for n in range(MESSAGES)])


def test_messages_in_quarantine_are_sent_again_by_clicks(browser: Browser, console: Served) -> None:
    browser.open(f"{console.url}/console/quarantine?topic=gone")
    press(browser, "tbody tr:first-child td:first-child a", "topic_missing")
    name = unquote(browser.url.partition("/quarantine/")[2])
    browser.fill({"topic": "back"})
    press(browser, 'form[action$="/quarantine-resend"] button')
    confirm(browser, "The message was sent again.")
    assert console.run(delivered(console.broker, "back", 1)) == [b"0"]
    console.run(test_resend_pages.one_is_indexed(console.broker, name))
    browser.open(f"{console.url}/console/quarantine?topic=gone")
    browser.fill({"to_topic": "back"})
    decide_on_all(browser, "resend", MESSAGES - 1, others=1)
    bodies = console.run(delivered(console.broker, "back", MESSAGES))
    assert sorted(bodies) == [b"%d" % number for number in range(MESSAGES)]


def test_dead_letters_are_sent_again_by_clicks(browser: Browser, console: Served) -> None:
    browser.open(f"{console.url}/console/dead-letters")
    press(browser, 'a[href$="/dead-letters/readers"]')
    press(browser, "tbody tr:first-child td:first-child a")
    browser.fill({"topic": "letters"})
    press(browser, 'form[method="get"][action$="/dead-letter-resend"] button')
    confirm(browser, "The message was sent again.")
    assert console.run(delivered(console.broker, "letters", 1)) == [b"0"]
    browser.open(f"{console.url}/console/dead-letters/readers")
    browser.fill({"to_topic": "again"})
    decide_on_all(browser, "resend", MESSAGES)
    bodies = console.run(delivered(console.broker, "again", MESSAGES))
    assert sorted(bodies) == [b"%d" % number for number in range(MESSAGES)]


def test_a_schedule_is_changed_by_clicks(browser: Browser, console: Served) -> None:
    states = {"pause": "paused", "resume": "active"}
    for change in ("pause", "resume", "trigger", "delete"):
        browser.open(f"{console.url}/console/schedules/{SCHEDULE}")
        press(browser, f'form:has([name="change"][value="{change}"]) button')
        confirm(browser, states.get(change, ""))
        if change == "trigger":
            assert console.run(delivered(console.broker, "reports", 1)) == [b"now"]
    assert browser.url.endswith("/console/schedules")
    assert SCHEDULE not in browser.source


async def migration_of(broker: Broker) -> LevelMigration:
    """Return the state of the only migration."""
    async with Admin(broker=broker.address, credentials=ROOT) as admin:
        [level] = (await admin.migration_status(broker.address))["levels"]
        return level


async def rate_of(broker: Broker) -> str:
    """Return the limit of migrations in messages per second."""
    async with Admin(broker=broker.address, credentials=ROOT) as admin:
        return (await admin.broker_config(broker.address))["migrationRate"]


def test_a_migration_is_steered_by_clicks(browser: Browser, console: Served) -> None:
    """Its limit of one message per second keeps it in progress until it is paused."""
    level = {"levels": str(LEVEL)}
    commands = {"plan": level, "throttle": {"rate": "1"}, "start": level, "pause": {}}
    states = list[tuple[str, bool]]()
    for action, values in {**commands, "rollback": level}.items():
        browser.open(f"{console.url}/console/migrations")
        press(browser, 'a[href*="/console/migrations/"]')
        form = f'form:has([name="action"][value="{action}"])'
        browser.fill(values, form)
        press(browser, f"{form} button")
        confirm(browser, "The broker carried out the command.")
        if action not in ("plan", "throttle"):
            one = console.run(migration_of(console.broker))
            states.append((one["state"], one["paused"]))
    [started, (_, is_paused), (state, _)] = states
    assert started in (("routing", False), ("draining", False))
    assert is_paused
    assert state in ("rolling_back", "rolled_back")
