"""Imports and transfers that end at each of their requests, and are repeated.

A request is lost, or it is executed and its response is lost. A killed client leaves the same
states. Brokers that are killed: `tests/crash/test_kill_transfer.py`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.cli import send_file, timers_transfer
from duemq.cli.decoded_page import decode_page
from duemq.cli.message_file import MessageFileWriter, PendingLine
from duemq.cli.options import Target
from duemq.cli.timers_export import pages_of
from duemq.client.client import Client
from duemq.client.connection import ServerConnection
from duemq.client.errors import ClientError
from duemq.client.message import Message, milliseconds
from duemq.client.producer import Producer
from duemq.testing import LocalBroker
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from message_store.store import MessageStore
from tests.support.commands import duemq
from tests.support.extended import extended
from tests.support.running_broker import TIMEOUT_S, connected

HOUR_MS = 3_600_000
HOURS = (1, 2, 3)
MARGIN_MS = 60_000
Step = tuple[int, int, bool]
"""Number of new messages, number of the request that fails, and whether it is executed."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[LocalBroker, LocalBroker]]:
    with LocalBroker(brokerName="source") as source, LocalBroker(brokerName="target") as target:
        yield source, target


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_transfer, "BATCH_MESSAGES", 2)
    monkeypatch.setattr(send_file, "BATCH_MESSAGES", 2)


def is_interrupted(command: Callable[[], None], number: int, *, is_executed: bool) -> bool:
    """Run a command whose request with a number fails; return whether it had so many."""
    requests, send, thread = count(), ServerConnection.call, threading.current_thread()
    interrupted = False

    def call(
        connection: ServerConnection, request: Request, timeout_s: float
    ) -> asyncio.Future[Response]:
        nonlocal interrupted
        is_own = threading.current_thread() is thread  # brokers have clients, too
        if not is_own or next(requests) != number:
            return send(connection, request, timeout_s)
        interrupted = True

        async def fail() -> Response:
            if is_executed:
                await send(connection, request, timeout_s)
            raise ConnectionResetError("interrupted by the test")

        return asyncio.ensure_future(fail())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerConnection, "call", call)
        try:
            command()
        except* (ClientError, OSError):
            assert interrupted
    return interrupted


class Model:
    """Messages with their due times, and the brokers that have them."""

    def __init__(self, source: LocalBroker, target: LocalBroker, topic: str) -> None:
        self.source, self.target, self.topic = source, target, topic
        self.due_ms: dict[str, int] = {}

    def send(self, number: int) -> None:
        """Send messages to the source: timers, and each fourth one with a level."""
        sent = asyncio.run(self._send(number))
        lines = {line.unique_id: line.due_ms for line in self.pending(self.source)}
        self.due_ms |= {own_id: lines[own_id] for own_id in sent}

    async def _send(self, number: int) -> list[str]:
        first = len(self.due_ms)
        own_ids = [f"{self.topic}-{first + index:020}" for index in range(number)]
        async with Producer(broker=self.source.address, timeout_s=TIMEOUT_S) as producer:
            for index, own_id in enumerate(own_ids):
                message = Message(self.topic, own_id.encode(), message_id=own_id)
                if index % 4 == 3:
                    message.level = 18
                else:
                    ahead = timedelta(hours=HOURS[index % len(HOURS)])
                    message.deliver_at = self.source.now + ahead
                await producer.send(message)
        return own_ids

    def pending(self, broker: LocalBroker) -> list[PendingLine]:
        async def lines() -> list[PendingLine]:
            async with Client(broker=broker.address) as client:
                pages = [decode_page(each) async for each in pages_of(client, broker.address)]
            return [line for page in pages for line in page.lines if line.topic == self.topic]

        return asyncio.run(lines())

    def transfer(self) -> None:
        source = Target(broker=self.source.address)
        timers_transfer.transfer(source, self.target.address, margin_ms=MARGIN_MS, really=True)

    def check_nothing_lost(self) -> None:
        """Check that each message is pending once at the source, the target, or both."""
        counts = [Counter(line.unique_id for line in self.pending(broker)) for broker in self.both]
        assert set(counts[0]) | set(counts[1]) == set(self.due_ms)
        assert all(number == 1 for each in counts for number in each.values())

    @property
    def both(self) -> tuple[LocalBroker, LocalBroker]:
        return self.source, self.target

    def check_transferred(self) -> None:
        """Check that each message is pending once at the target, and none at the source."""
        assert self.pending(self.source) == []
        times = [(line.unique_id, line.due_ms) for line in self.pending(self.target)]
        assert sorted(times) == sorted(self.due_ms.items())

    def check_delivered(self) -> None:
        """Check that the target alone has delivered each message, once and not early."""
        assert self.source.messages(self.topic) == []
        delivered = self.target.messages(self.topic)
        assert Counter(each.body.decode() for each in delivered) == Counter(
            dict.fromkeys(self.due_ms, 1)
        )
        assert all(each.record.store_ms >= self.due_ms[each.message_id] for each in delivered)


def deliver(brokers: tuple[LocalBroker, LocalBroker]) -> None:
    for broker in brokers:
        broker.advance(hours=4)


@pytest.mark.sampled
@pytest.mark.parametrize("is_executed", [False, True])
def test_a_transfer_is_interrupted_at_each_request(
    brokers: tuple[LocalBroker, LocalBroker], is_executed: bool
) -> None:
    models: list[Model] = []
    for number in count():
        models.append(Model(*brokers, f"transfer-{is_executed}-{number}"))
        model = models[-1]
        model.send(4)
        interrupted = is_interrupted(model.transfer, number, is_executed=is_executed)
        model.check_nothing_lost()
        model.transfer()
        model.check_transferred()
        if not interrupted:
            break
    assert len(models) > 10
    deliver(brokers)
    for model in models:
        model.check_delivered()


@pytest.mark.parametrize("examples", [5, extended(200)])
def test_transfers_are_interrupted_repeatedly(
    brokers: tuple[LocalBroker, LocalBroker], examples: int
) -> None:
    models: list[Model] = []
    steps = st.tuples(st.integers(0, 3), st.integers(0, 14), st.booleans())

    @settings(max_examples=examples)
    @given(st.lists(steps, min_size=2, max_size=5))
    def run(steps: list[Step]) -> None:
        models.append(Model(*brokers, f"repeated-{examples}-{len(models)}"))
        model = models[-1]
        for new, number, is_executed in steps:
            model.send(new)
            is_interrupted(model.transfer, number, is_executed=is_executed)
            model.check_nothing_lost()
        model.transfer()
        model.check_transferred()

    run()
    deliver(brokers)
    for model in models:
        model.check_delivered()


async def send_batch(address: str, topic: str, own_ids: list[str], due_ms: int) -> None:
    """Send timers as a Java client: each has its own id, unless empty, and then the batch's."""
    body = b""
    for number, own_id in enumerate(own_ids):
        text = f"TIMER_DELIVER_MS\x01{due_ms}\x02" + f"UNIQ_KEY\x01{own_id}\x02" * bool(own_id)
        content = b"message %d" % number
        size = 22 + len(content) + len(text)
        body += struct.pack(">5i", size, 0, 0, 0, len(content)) + content
        body += struct.pack(">h", len(text)) + text.encode()
    async with connected(address) as remote:
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
        fields |= {"i": f"UNIQ_KEY\x01{topic}-batch\x02", "j": 0, "k": "false", "m": "true"}
        assert (await remote.call(RequestCode.SEND_BATCH_MESSAGE, fields, body)).code == 0


@pytest.mark.parametrize("has_own_ids", [True, False])
def test_messages_of_a_batch_are_not_lost(
    brokers: tuple[LocalBroker, LocalBroker], has_own_ids: bool, tmp_path: Path
) -> None:
    model = Model(*brokers, f"batch-{has_own_ids}")
    own_ids = [f"{model.topic}-{number}" * has_own_ids for number in range(3)]
    due_ms = milliseconds(model.source.now) + HOUR_MS
    asyncio.run(send_batch(model.source.address, model.topic, own_ids, due_ms))
    for _ in range(3):
        model.transfer()
    pending = [[line.body for line in model.pending(broker)] for broker in model.both]
    bodies = [b"message %d" % number for number in range(3)]
    assert [sorted(each) for each in pending] == ([[], bodies] if has_own_ids else [bodies, []])


def test_a_message_with_the_id_of_another_one_is_refused(
    brokers: tuple[LocalBroker, LocalBroker], tmp_path: Path
) -> None:
    target, file = brokers[1], tmp_path / "pending.jsonl"
    due_ms = milliseconds(target.now) + HOUR_MS
    bodies = (b"one", b"two", b"one", b"three", b"four")
    with MessageFileWriter(file, {}) as writer:
        writer.write([PendingLine("same", 0, "id", due_ms, {}, body) for body in bodies])
    done = duemq("timers", "import", str(file), "--broker", target.address, "--yes", "--json")
    assert done.returncode == 4
    actions = [json.loads(line).get("what") for line in done.stdout.splitlines()]
    assert actions == ["send", "refused", "exists", "refused", "refused", None]


def test_a_delivered_message_with_the_id_of_another_one_is_not_its_copy(
    brokers: tuple[LocalBroker, LocalBroker], tmp_path: Path
) -> None:
    target, file = brokers[1], tmp_path / "pending.jsonl"
    now_ms = milliseconds(target.now)

    async def send() -> None:
        async with Producer(broker=target.address, timeout_s=TIMEOUT_S) as producer:
            for name in ("of-another", "copy"):
                await producer.send(Message("delivered", b"one", message_id=name))

    asyncio.run(send())
    with MessageFileWriter(file, {}) as writer:
        lines = [("of-another", b"on"), ("copy", b"one")]
        writer.write([PendingLine("delivered", 0, name, now_ms, {}, body) for name, body in lines])
    done = duemq("timers", "import", str(file), "--broker", target.address, "--yes", "--json")
    assert done.returncode == 4
    actions = [json.loads(line).get("what") for line in done.stdout.splitlines()]
    assert actions == ["refused", "exists", None]


def lines_of(topic: str, now_ms: int) -> list[PendingLine]:
    """Return messages of which the first one is due."""
    return [
        PendingLine(topic, 0, f"{topic}-{hours}", now_ms + hours * HOUR_MS, {}, b"body")
        for hours in (-1, 1, 2, 3, 3)
    ]


@pytest.mark.extended
@pytest.mark.parametrize("is_executed", [False, True])
def test_an_import_is_interrupted_at_each_request(
    brokers: tuple[LocalBroker, LocalBroker], is_executed: bool, tmp_path: Path
) -> None:
    target = brokers[1]
    where = Target(broker=target.address)
    delivered_ms: dict[str, int] = {}
    for number in count():
        topic, file = f"import-{is_executed}-{number}", tmp_path / f"{number}.jsonl"
        lines = lines_of(topic, milliseconds(target.now))
        with MessageFileWriter(file, {}) as writer:
            writer.write(lines)

        def command(file: Path = file) -> None:
            send_file.send_file(file, where, really=True)

        interrupted = is_interrupted(command, number, is_executed=is_executed)
        command()
        command()
        delivered_ms |= {line.unique_id: line.due_ms for line in lines}
        if not interrupted:
            break
    assert number > 10
    target.advance(hours=4)
    for each in range(number + 1):
        messages = target.messages(f"import-{is_executed}-{each}")
        assert len({message.message_id for message in messages}) == len(messages) == 4
        assert all(each.record.store_ms >= delivered_ms[each.message_id] for each in messages)


def test_a_broker_whose_clock_is_ahead_gets_each_message_once(tmp_path: Path) -> None:
    with LocalBroker() as target:
        target.advance(hours=2)
        file, where = tmp_path / "pending.jsonl", Target(broker=target.address)
        with MessageFileWriter(file, {}) as writer:
            writer.write(lines_of("ahead", milliseconds(datetime.now(UTC))))
        send_file.send_file(file, where, really=True)
        send_file.send_file(file, where, really=True)
        target.advance(seconds=1)  # until the one that is due now is delivered
        own_ids = [each.message_id for each in target.messages("ahead")]
        assert own_ids == ["ahead--1", "ahead-1", "ahead-2"]


def transferred(source: LocalBroker, target: str, *, code: int) -> str:
    """Run a transfer that fails; return its error text."""
    done = duemq("timers", "transfer", "--broker", source.address, "--to", target, "--yes")
    assert done.returncode == code, done.stderr
    return done.stderr


def test_a_target_that_does_not_respond_leaves_all_at_the_source(
    brokers: tuple[LocalBroker, LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(*brokers, "away")
    model.send(4)
    error = transferred(model.source, "127.0.0.1:1", code=3)
    assert "127.0.0.1:1 does not respond" in error
    send = ServerConnection.call

    def call(
        connection: ServerConnection, request: Request, timeout_s: float
    ) -> asyncio.Future[Response]:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            raise ConnectionResetError("the target has ended")
        return send(connection, request, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(ServerConnection, "call", call)
        error = transferred(model.source, model.target.address, code=3)
    assert "the target has ended" in error
    assert len(model.pending(model.source)) == 4
    assert model.pending(model.target) == []


def test_a_source_that_refuses_writes_keeps_its_messages(
    brokers: tuple[LocalBroker, LocalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(*brokers, "refusing")
    model.send(4)
    monkeypatch.setattr(MessageStore, "refusal", "no disk")
    error = transferred(model.source, model.target.address, code=4)
    assert "cannot cancel messages, so none are sent: the store is not writable: no disk" in error
    assert len(model.pending(model.source)) == 4
    assert model.pending(model.target) == []
