"""Cancels of timers by markers and recalls: permission, audit line, and verdict of each way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.audit import LOGGER
from duemq.auth.model import Action
from duemq.auth.record_access import cancel_actions
from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from duemq_common.codes import ResponseCode
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Response
from message_store.log.properties import encode_properties
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.running_broker import BrokerClient, bodies_of, connected, running, small

OWNER = Credentials("owner", "owner-secret")
PUBLISHER = Credentials("publisher", "publisher-secret")
KEY = {"other": "7F000001" + "A" * 24, "orders": "7F000001" + "B" * 24}  # by topic
DELAY_MS = 20_000


@dataclass(frozen=True, slots=True)
class Rig:
    """A broker with a pending timer in each of the topics `other` and `orders`.

    Attributes:
        due_ms: Due time of both timers.
        publisher: Has `Pub` on `orders`, and what a test gives it in addition.
    """

    clock: FakeClock
    broker: Broker
    root: BrokerClient
    owner: BrokerClient
    publisher: BrokerClient
    due_ms: int

    async def bodies(self, topic: str) -> list[bytes]:
        """Return the messages of a topic, after all timers are due."""
        self.clock.advance(2 * DELAY_MS)
        response = await self.root.pull(topic, 1, group="root-group")  # 0: a message sent at once
        return bodies_of(response)

    async def verdict(self, topic: str) -> tuple[str, str]:
        """Return the owner's verdict and remark for the timer of a topic."""
        body = json.dumps({"topic": topic, "ids": [KEY[topic]], "dry_run": True}).encode()
        response = await self.root.call(9_011, {}, body)
        [result] = json.loads(bytes(response.body))["results"]
        return result["verdict"], result.get("remark", "")


@asynccontextmanager
async def rig_of(root: Path, more: Mapping[str, list[str]]) -> AsyncIterator[Rig]:
    clock = FakeClock()
    keys = small(root, timerWheelEnable="true", recallMessageEnable="true", **KEYS)
    async with (
        running(keys, clock=clock) as (broker, _),
        connected(broker.address, ROOT) as remote,
        connected(broker.address, OWNER) as owner,
        connected(broker.address, PUBLISHER) as publisher,
    ):
        permissions = {"Topic:orders": ["Pub"], **more}
        await prepare_all(broker.address, ROOT, user_steps(PUBLISHER, permissions))
        actions = ["Pub", "Sub", "Get", "Update"]
        await prepare_all(broker.address, ROOT, user_steps(OWNER, {"Topic:other": actions}))
        due_ms = clock.now_ms() + DELAY_MS
        for topic in ("other", "orders"):
            assert (await remote.send(topic, b"first")).code == 0
            late = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": KEY[topic]}
            assert (await remote.send(topic, f"late {topic}".encode(), **late)).code == 0
        yield Rig(clock, broker, remote, owner, publisher, due_ms)


def run(root: Path, work: Callable[[Rig], Awaitable[None]], **more: list[str]) -> None:
    async def main() -> None:
        async with rig_of(root, {f"Topic:{topic}": each for topic, each in more.items()}) as rig:
            await work(rig)

    asyncio.run(main())


# Ways to cancel: the account sends to a topic a message that names the timer.

Way = Callable[[Rig, str, str], Awaitable[Response]]


def marker(rig: Rig, named: str, **more: str) -> dict[str, str]:
    due = {"TIMER_DELIVER_MS": str(rig.due_ms), "TIMER_DEL_UNIQKEY": named}
    return due | {"UNIQ_KEY": "C" * 32} | more


def name_of(topic: str) -> str:
    return f"{topic}+{KEY[topic]}"


def letters(topic: str, properties: Mapping[str, str], due_ms: int) -> dict[str, Any]:
    text = encode_properties(dict(properties)).decode()
    values = ("p", topic, "TBW102", "4", "0", "0", str(due_ms), "0", text, "0", "false", "0")
    return dict(zip("abcdefghijkl", values, strict=True)) | {"m": "false"}


async def send(rig: Rig, sent_to: str, named: str) -> Response:
    return await rig.publisher.send(sent_to, b"0", **marker(rig, name_of(named)))


async def send_v2(rig: Rig, sent_to: str, named: str) -> Response:
    fields = letters(sent_to, marker(rig, name_of(named)), rig.due_ms)
    return await rig.publisher.call(310, fields, b"0")


async def send_second(rig: Rig, sent_to: str, named: str) -> Response:
    """The kernel parses sends of a granted account and topic: the marker is the second send."""
    fields = letters(sent_to, {"UNIQ_KEY": "C" * 32}, rig.due_ms)
    assert (await rig.publisher.call(310, fields, b"warm")).code == 0
    return await send_v2(rig, sent_to, named)


async def batch(rig: Rig, sent_to: str, named: str) -> Response:
    text = encode_properties(marker(rig, name_of(named)))
    size = 4 + 4 + 4 + 4 + 4 + 1 + 2 + len(text)
    head = size.to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"0"
    entry = head + len(text).to_bytes(2, "big") + text
    return await rig.publisher.call(320, letters(sent_to, {}, 1) | {"m": "true"}, entry)


async def shared_by_a_batch(rig: Rig, sent_to: str, named: str) -> Response:
    entry = (23).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"0" + bytes(2)
    properties = marker(rig, name_of(named))
    fields = letters(sent_to, properties, rig.due_ms) | {"m": "true"}
    return await rig.publisher.call(320, fields, entry)


async def half(rig: Rig, sent_to: str, named: str) -> Response:
    more = {"TRAN_MSG": "true", "PGROUP": "p"}
    properties = marker(rig, name_of(named), **more)
    sent = await rig.publisher.send(sent_to, b"0", **properties)
    if sent.code != 0:
        return sent
    assert sent.fields is not None
    return await rig.publisher.call(37, end_of(sent, sent_to))


def end_of(sent: Response, topic: str) -> dict[str, Any]:
    assert sent.fields is not None
    return {
        "topic": topic,
        "producerGroup": "p",
        "commitOrRollback": 8,
        "msgId": "m",
        "commitLogOffset": int(sent.fields["msgId"][-16:], 16),
        "tranStateTableOffset": sent.fields["queueOffset"],
        "fromTransactionCheck": "false",
    }


async def reply(rig: Rig, sent_to: str, named: str) -> Response:
    fields = letters(sent_to, marker(rig, name_of(named)), rig.due_ms)
    response = await rig.publisher.call(325, fields, b"0")
    if response.code == ResponseCode.SYSTEM_ERROR:  # stored; there is no requester to push it to
        assert "REPLY_TO_CLIENT" in (response.remark or "")
        response.code = 0
    return response


async def recall(rig: Rig, sent_to: str, named: str) -> Response:
    handle = RecallHandle(named, "test", str(rig.due_ms), KEY[named]).encode()
    fields = {"producerGroup": "p", "topic": sent_to, "recallHandle": handle}
    return await rig.publisher.call(370, fields)


SENDS: tuple[Way, ...] = (send, send_v2, send_second, batch, shared_by_a_batch, half, reply)


def named(way: Way) -> str:
    return way.__name__


@pytest.mark.finding("3S1")
@pytest.mark.parametrize("way", SENDS, ids=named)
def test_a_marker_needs_the_permission_for_the_timers_topic(
    tmp_path: Path, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    async def work(rig: Rig) -> None:
        response = await way(rig, "orders", "other")
        assert response.code == ResponseCode.NO_PERMISSION, response
        assert (await rig.verdict("other"))[0] == "done"
        assert await rig.bodies("other") == [b"late other"]

    run(tmp_path, work)
    [line] = [json.loads(text) for text in caplog.messages if '"refused"' in text]
    assert line["user"] == PUBLISHER.access_key
    assert (line["resource"], line["action"]) == ("Topic:other", "Update")


@pytest.mark.finding("3S1")
@pytest.mark.finding("3S5")
@pytest.mark.parametrize("way", [*SENDS, recall], ids=named)
def test_a_cancel_is_audited_and_leads_to_true_verdicts(
    tmp_path: Path, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    """`Pub` on the topic of the timer recalls it, as in Apache's broker."""
    caplog.set_level(logging.INFO, LOGGER)

    async def work(rig: Rig) -> None:
        caplog.clear()
        response = await way(rig, "orders", "orders")
        assert response.code == 0, response
        expected = ("done", "the message was cancelled before")
        assert await rig.verdict("orders") == expected
        body = json.dumps({"topic": "orders", "name": KEY["orders"]}).encode()
        shown = json.loads(bytes((await rig.root.call(9_002, {}, body)).body))
        assert [one["state"] for one in shown["messages"]] == ["cancelled"], shown
        first = await rig.bodies("other")
        assert first == [b"late other"]
        orders = await rig.root.pull("orders", 0, group="root-group")
        assert b"late orders" not in bodies_of(orders)
        assert await rig.verdict("orders") == expected

    run(tmp_path, work)
    lines = [json.loads(text) for text in caplog.messages]
    [line] = [one for one in lines if one["user"] == PUBLISHER.access_key][-1:]
    assert (line["event"], line["resource"]) == ("allowed", "Topic:orders")


@pytest.mark.finding("3S1")
def test_update_on_a_topic_cancels_its_timers_from_another_topic(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        assert (await send(rig, "orders", "other")).code == 0
        assert await rig.verdict("other") == ("done", "the message was cancelled before")

    run(tmp_path, work, other=["Update"])


@pytest.mark.finding("3S1")
def test_pub_on_a_topic_does_not_cancel_its_timers_from_another_topic(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        response = await send(rig, "orders", "other")
        assert response.code == ResponseCode.NO_PERMISSION

    run(tmp_path, work, other=["Pub"])


@pytest.mark.finding("3S1")
def test_a_recall_without_a_topic_acts_on_the_topic_that_it_is_sent_to(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        key, due = KEY["orders"], {"TIMER_DELIVER_MS": str(rig.due_ms)}
        assert (await rig.root.send("other", b"same key", UNIQ_KEY=key, **due)).code == 0
        properties = marker(rig, key, UNIQ_KEY=key, TAGS="_RECALL_TAG_")
        assert (await rig.publisher.send("orders", b"0", **properties)).code == 0
        assert (await rig.verdict("orders"))[1] == "the message was cancelled before"
        assert await rig.bodies("other") == [b"late other", b"same key"]

    run(tmp_path, work)


@pytest.mark.finding("3S1")
def test_a_withdrawn_permission_stops_a_cancel_at_the_commit(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        properties = marker(rig, name_of("other"), TRAN_MSG="true", PGROUP="p")
        sent = await rig.publisher.send("orders", b"0", **properties)
        assert sent.code == 0, sent
        subject = {"subject": f"User:{PUBLISHER.access_key}", "resource": "Topic:other"}
        assert (await rig.root.call(3_008, subject)).code == 0
        response = await rig.publisher.call(37, end_of(sent, "orders"))
        assert response.code == ResponseCode.NO_PERMISSION, response
        assert await rig.bodies("other") == [b"late other"]

    run(tmp_path, work, other=["Update"])


def test_the_own_topic_needs_one_of_two_actions() -> None:
    assert cancel_actions("T", "T") == (Action.PUB, Action.UPDATE)
    assert cancel_actions("U", "T") == (Action.UPDATE,)
