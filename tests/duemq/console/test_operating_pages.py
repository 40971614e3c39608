"""Levels, migrations, quarantine, dead letters, replicas and configuration in the console."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, PendingDecisions, Producer
from duemq.client.admin.topics import QueueState
from duemq.client.message import MessageQueue
from duemq.console.pages.levels import apache_view
from tests.duemq.client.admin.test_admin import make_dead_letter, until_quarantined
from tests.duemq.console.conftest import HOSTILE
from tests.duemq.console.rig import (
    ACCOUNT_KEYS,
    OPERATOR,
    VIEWER,
    Served,
    csrf_of,
    served,
    with_accounts,
)
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S

CONFIRM = "<h2>Confirm</h2>"


async def prepared(broker: Broker) -> None:
    """Create accounts, a message in quarantine, a dead letter, and level messages."""
    await with_accounts(broker)
    address = f"127.0.0.1:{broker.port}"
    async with (
        Producer(broker=address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer,
        Admin(broker=address, credentials=ROOT) as admin,
    ):
        properties = {"note": HOSTILE}
        gone = Message(
            "gone", HOSTILE.encode(), keys=["<b>"], properties=properties, delay=timedelta(hours=1)
        )
        sent = await producer.send(gone)
        await admin.delete_topic("gone")
        results = await PendingDecisions(client=admin.client).fire(ids=[sent.message_id])
        assert [one.verdict for one in results] == ["done"]
        await producer.send(Message("kept", HOSTILE.encode(), keys=["<b>"], properties=properties))
        await admin.create_group("readers")
        await make_dead_letter(admin, "readers", "kept")
        for level in (3, 3, 18):
            await producer.send(Message("levels", b"level", level=level))
        await until_quarantined(admin, 1)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and something on every page."""
    with served(tmp_path_factory.mktemp("operating"), prepared, **ACCOUNT_KEYS) as running:
        yield running


def fields_of(text: str) -> dict[str, str]:
    """Return the hidden fields of the form that confirms an action."""
    form = text.partition(CONFIRM)[2].partition("</form>")[0]
    pairs = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)
    return {name: html.unescape(value) for name, value in pairs}


def confirmed(client: httpx.Client, path: str, **parameters: str) -> str:
    """Ask for an action, confirm it, and return the page with its result."""
    planned = client.get(path, params=parameters)
    assert planned.status_code == 200, planned.text
    done = client.post(path, data=fields_of(planned.text))
    assert done.status_code == 200, done.text
    return done.text


def test_levels_show_pending_messages_and_due_times(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        text = client.get("/levels").text
        assert re.search(r"<dt>Pending level messages</dt><dd>[1-9]", text)
        assert re.search(r'<td class="number">18</td><td class="number">2 h</td>', text)


def test_level_messages_are_cancelled_without_a_timer_among_the_hits(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        text = client.get("/timers?topic=levels").text
        assert "There are none." in text
        assert "Decide on all messages of this search, those of levels included" in text
        form = {"csrf": csrf_of(text), "action": "cancel", "topic": "levels"}
        page = client.post("/bulk", data=form)
        while "sse-connect" in page.text:
            page = client.get(page.url.path.removeprefix("/console"))
        assert re.search(r"<td>levels</td>\s*<td class=\"number\">[1-9]", page.text)


def test_levels_of_an_apache_broker_have_pending_messages_only() -> None:
    info = {"scheduleMessageOffset_3": "5,7", "other": "1,2"}
    queues = [
        QueueState(MessageQueue("SCHEDULE_TOPIC_XXXX", "b", queue_id), 1, max_offset, None)
        for queue_id, max_offset in ((2, 7), (3, 4))
    ]
    levels = [{"level": 3, "pending": 2}, {"level": 4, "pending": 3}]
    assert apache_view(info, queues) == {"levels": levels, "pending": 5}


def test_migrations_are_planned_started_paused_and_rolled_back(accounts: Served) -> None:
    with accounts.logged_in(ROOT) as client:
        text = client.get("/migrations").text
        assert "No level was migrated." in text
        [path] = re.findall(r'href="/console(/migrations/[^"]+)"', text)
        assert "Start a migration" in client.get(path).text
        broker = html.unescape(path.removeprefix("/migrations/")).replace("%3A", ":")
        command = {"broker": broker, "levels": "18"}
        path = "/migration-commands"
        planned = client.get(path, params=command | {"action": "plan"})
        assert CONFIRM in planned.text
        result = confirmed(client, path, action="start", **command)
        assert "The broker carried out the command." in result
        text = client.get("/migrations").text
        assert re.search(r'<td class="number">18</td>', text)
        done = command | {"action": "pause", "levels": "3", "cause": HOSTILE}
        refused = client.get(path, params=done)
        assert "The broker refuses the command." in refused.text
        assert HOSTILE not in refused.text
        rolled = confirmed(client, path, action="rollback", **command)
        assert "The broker carried out the command." in rolled
        limited = confirmed(client, path, broker=broker, action="throttle", rate="4321")
        assert "4321" in limited
        for query in ("levels=x", "levels=", "levels=4&rules=x", "action=drop"):
            request = client.get(f"{path}?broker={broker}&action=start&{query}")
            assert request.status_code == 400, query
        assert client.get(f"{path}?broker=other&action=start").status_code == 404


def test_a_message_in_quarantine_is_shown_and_sent_again_once(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        text = client.get("/quarantine").text
        [path] = re.findall(r'href="/console(/quarantine/[^"]+)"', text)
        assert "topic_missing" in text
        message = client.get(path).text
        assert html.escape(HOSTILE) in message.replace("&#34;", "&quot;")
        assert HOSTILE not in message
        name = httpx.URL(path).path.removeprefix("/quarantine/")
        assert "The message was sent again." in confirmed(
            client, "/quarantine-resend", name=name, topic="kept"
        )
        again = client.get("/quarantine-resend", params={"name": name, "topic": "kept"})
        assert "nothing is done" in again.text
        assert CONFIRM not in again.text
        assert client.get("/quarantine/other").status_code == 400
        assert client.get("/quarantine?cursor=0.x_y").status_code == 400
        missing = client.get(path.rsplit("%2F", 1)[0] + "%2F999")
        assert missing.status_code == 404


def test_a_dead_letter_is_shown_and_sent_again_once(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        groups = client.get("/dead-letters").text
        assert re.search(
            r'href="/console/dead-letters/readers">readers</a></td>\s*<td class="number">1', groups
        )
        text = client.get("/dead-letters/readers").text
        [link] = re.findall(r'href="/console(/dead-letter-resend\?[^"]+)"', text)
        query = dict(httpx.URL(html.unescape(link)).params)
        done = confirmed(client, "/dead-letter-resend", **query)
        assert "The message was sent again." in done
        again = client.get("/dead-letter-resend", params=query)
        assert "already sent" in again.text
        assert CONFIRM not in again.text


def test_viewers_may_neither_send_again_nor_command(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        assert "/dead-letter-resend" not in client.get("/dead-letters/readers").text
        for path in ("/quarantine-resend", "/dead-letter-resend", "/migration-commands"):
            assert client.get(path).status_code == 403, path
            csrf = csrf_of(client.get("/").text)
            assert client.post(path, data={"csrf": csrf}).status_code == 403, path


def test_configuration_shows_values_defaults_and_sources_without_secrets(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        text = client.get("/configuration").text
        row = re.search(r"<tr><td><code>initAuthenticationUser</code>.*?</tr>", text, re.S)
        assert row is not None
        assert "***" in row.group()
        assert ROOT.secret not in text
        assert "diskMaxUsedSpaceRatio" not in text
        every = client.get("/configuration?shown=all&prefix=diskmax").text
        assert "diskMaxUsedSpaceRatio" in every
        assert "default" in every


def test_replicas_show_role_and_state(shared_console: Served) -> None:
    with shared_console.client() as client:
        text = client.get("/replicas").text
    assert "<td>MASTER</td>" in text
    assert "<td>serves</td>" in text
