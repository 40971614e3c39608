"""Bulk resends: messages in quarantine and dead letters are counted, and sent again once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, PendingDecisions, Producer, PullConsumer
from duemq.client.admin.resends import UndeliveredMessage, UndeliveredSearch
from duemq.client.admin.topics import TopicSettings
from duemq_common.codes import RequestCode
from tests.duemq.client.admin.test_admin import broker_has
from tests.duemq.console.rig import (
    ACCOUNT_KEYS,
    OPERATOR,
    VIEWER,
    Served,
    csrf_of,
    served,
    with_accounts,
)
from tests.duemq.console.test_bulk import listed, results_of, started
from tests.support.accounts import ROOT
from tests.support.running_broker import TIMEOUT_S

MESSAGES = 5


async def prepared(broker: Broker) -> None:
    """Create accounts, messages in quarantine, and dead letters."""
    await with_accounts(broker)
    address = f"127.0.0.1:{broker.port}"
    async with (
        Producer(broker=address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer,
        Admin(broker=address, credentials=ROOT) as admin,
    ):
        for topic in ("gone", "lost"):
            sent = [
                await producer.send(Message(topic, b"%d" % number, delay=timedelta(hours=1)))
                for number in range(MESSAGES)
            ]
            await admin.delete_topic(topic)
            decisions = PendingDecisions(client=admin.client)
            await decisions.fire(ids=[one.message_id for one in sent])
        await admin.create_topic("kept", TopicSettings(read_queues=1, write_queues=1))
        await admin.create_group("readers")
        for number in range(MESSAGES):
            await producer.send(Message("kept", b"%d" % number, tag="a"))
        consumer = PullConsumer(group="readers", client=admin.client)
        [queue] = await consumer.queues("kept")
        for message in (await consumer.pull(queue, 0)).messages:
            fields = {
                "offset": message.record.phys_offset,
                "group": "readers",
                "delayLevel": -1,
                "originMsgId": message.offset_message_id,
                "originTopic": "kept",
            }
            await admin.client.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker with accounts and undelivered messages."""
    with served(tmp_path_factory.mktemp("resends"), prepared, **ACCOUNT_KEYS) as running:
        yield running


async def indexed(broker: Broker, search: UndeliveredSearch, topic: str, copies: int) -> None:
    """Return when the index has all copies of the messages of a search in a topic."""
    async with Admin(broker=broker.address, credentials=ROOT) as admin:
        items: list[UndeliveredMessage] = []
        async for _, _, page in admin.undelivered(search):
            items += page.items
        for item in items:
            await broker_has(admin, topic, item.unique_id, copies)


def test_a_search_in_quarantine_is_sent_again_once(accounts: Served) -> None:
    search = {"action": "resend", "topic": "gone", "to_topic": "back"}
    with accounts.logged_in(OPERATOR) as client:
        text = client.get("/quarantine", params={"topic": "gone"}).text
        assert text.count("topic_missing") == MESSAGES
        assert 'name="letters_of"' not in text
        assert "topic_missing" not in client.get("/quarantine?until=2020-01-01T00:00").text
        name = re.findall(r'href="/console/quarantine/([^"]+)"', text)[0].replace("%2F", "/")
        form = {"csrf": csrf_of(text), "name": name, "topic": "back"}
        assert "was sent again" in client.post("/quarantine-resend", data=form).text
        accounts.run(one_is_indexed(accounts.broker, name))

        page = listed(client, **search)
        assert results_of(page.text) == {"before": 1, "open": MESSAGES - 1}
        path = page.url.path.removeprefix("/console")
        wrong = {"csrf": csrf_of(page.text), "do": "start", "count": str(MESSAGES)}
        assert client.post(path, data=wrong).status_code == 400
        page = started(client, page, MESSAGES - 1)
        assert results_of(page.text) == {"done": MESSAGES - 1, "before": 1}
        accounts.run(indexed(accounts.broker, UndeliveredSearch(topic="gone"), "back", 1))

        again = listed(client, **search)
        assert results_of(again.text) == {"before": MESSAGES}
        assert 'name="count"' not in again.text
        assert results_of(listed(client, **search, until="2020-01-01T00:00").text) == {}


async def one_is_indexed(broker: Broker, name: str) -> None:
    """Return when the index has the copy of one message in quarantine."""
    await indexed(broker, UndeliveredSearch(names=frozenset({name})), "back", 1)


def test_dead_letters_of_a_group_are_sent_again_once(accounts: Served) -> None:
    search = {"action": "resend", "letters_of": "readers"}
    with accounts.logged_in(OPERATOR) as client:
        assert 'name="letters_of" value="readers"' in client.get("/dead-letters/readers").text
        page = listed(client, **search)
        assert results_of(page.text) == {"open": MESSAGES}
        assert results_of(started(client, page, MESSAGES).text) == {"done": MESSAGES}
        of_group = UndeliveredSearch(letters_of="readers")
        accounts.run(indexed(accounts.broker, of_group, "kept", 2))
        assert results_of(listed(client, **search).text) == {"before": MESSAGES}
        assert "has no dead letters" in listed(client, action="resend", letters_of="absent").text


def test_a_message_that_is_refused_does_not_stop_the_others(accounts: Served) -> None:
    with accounts.logged_in(OPERATOR) as client:
        page = listed(client, action="resend", topic="lost", to_topic="%bad name")
        counts = results_of(page.text)
        assert sum(counts.values()) == MESSAGES
        if "open" in counts:
            counts = results_of(started(client, page, counts["open"]).text)
        assert counts == {"refused": MESSAGES}


def test_viewers_may_not_send_again(accounts: Served) -> None:
    with accounts.logged_in(VIEWER) as client:
        text = client.get("/quarantine").text
        assert 'action="/console/bulk"' not in text
        form = {"action": "resend", "csrf": csrf_of(text)}
        assert client.post("/bulk", data=form).status_code == 403
