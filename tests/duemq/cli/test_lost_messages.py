"""`duemq reconcile repair`, then `duemq send --from` to the store that lost the messages."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.client.message import milliseconds
from duemq.testing import LocalBroker
from duemq_common.codes import RequestCode
from tests.duemq.cli.test_interrupted_moves import send_batch
from tests.support.commands import duemq
from tests.support.running_broker import connected

HOUR_MS = 3_600_000
COMPRESSED = 1  # sysFlag


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lost") / "store"


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[LocalBroker]:
    with LocalBroker(storePathRootDir=str(store)) as broker:
        yield broker


class Lost:
    """Messages of a topic that is deleted while they are pending, and created again."""

    def __init__(self, broker: LocalBroker, topic: str) -> None:
        self.broker, self.topic = broker, topic

    @property
    def due_ms(self) -> int:
        return milliseconds(self.broker.now) + HOUR_MS

    def send(self, body: bytes, unique_id: str, *, flag: int = 0, sys_flag: int = 0) -> None:
        properties = f"TIMER_DELIVER_MS\x01{self.due_ms}\x02UNIQ_KEY\x01{unique_id}\x02"
        fields = {"a": "p", "b": self.topic, "c": "TBW102", "d": 1, "e": 0, "f": sys_flag}
        fields |= {
            "g": milliseconds(self.broker.now),
            "h": flag,
            "i": properties,
            "j": 0,
            "k": "false",
            "m": "false",
        }
        asyncio.run(self._call(RequestCode.SEND_MESSAGE_V2, fields, body))

    async def _call(self, code: int, fields: dict[str, object], body: bytes = b"") -> None:
        async with connected(self.broker.address) as remote:
            response = await remote.call(code, fields, body)
            assert response.code == 0, response.remark

    def lose(self) -> None:
        asyncio.run(self._call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic}))
        self.broker.advance(hours=2)
        fields: dict[str, object] = {"topic": self.topic, "defaultTopic": "TBW102", "perm": 6}
        fields |= {"readQueueNums": 1, "writeQueueNums": 1, "topicFilterType": "SINGLE_TAG"}
        asyncio.run(self._call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"order": "false"}))

    def actions(self, file: Path, *words: str) -> Counter[str]:
        """Return the number of messages of the topic by action of `send --from`."""
        command = ("send", "--from", str(file), "--broker", self.broker.address, "--json")
        ran = duemq(*command, *words)
        lines = [json.loads(text) for text in ran.stdout.splitlines()]
        return Counter(line["what"] for line in lines if line.get("topic") == self.topic)


@pytest.fixture
def file(store: Path, tmp_path: Path) -> Path:
    return tmp_path / "lost.jsonl"


def repair(store: Path, file: Path) -> None:
    ran = duemq("reconcile", "repair", str(store), "--to", str(file))
    assert ran.returncode == 0, ran.stderr


def test_lost_messages_are_sent_to_the_store_that_has_their_records(
    broker: LocalBroker, store: Path, file: Path
) -> None:
    lost = Lost(broker, "lost")
    body = b"compressed " * 1_000
    lost.send(b"plain", "id-plain")
    lost.send(zlib.compress(body), "id-compressed", flag=7, sys_flag=COMPRESSED)
    asyncio.run(send_batch(broker.address, "lost", ["id-0", "id-1", "id-2"], lost.due_ms))
    lost.lose()
    repair(store, file)
    assert lost.actions(file) == {"send": 5}
    assert lost.actions(file, "--yes") == {"send": 5}
    broker.advance()
    messages = broker.messages("lost")
    bodies = [b"plain", body, b"message 0", b"message 1", b"message 2"]
    assert sorted(each.body for each in messages) == sorted(bodies)
    assert {each.record.flag for each in messages if each.body == body} == {7}
    assert lost.actions(file, "--yes") == {"exists": 5}


def test_a_lost_message_is_not_taken_for_another_one_with_its_id(
    broker: LocalBroker, store: Path, file: Path
) -> None:
    lost = Lost(broker, "shared")
    lost.send(b"lost", "id")
    lost.lose()
    lost.send(b"another one", "id")
    broker.advance(hours=2)
    repair(store, file)
    assert lost.actions(file, "--yes") == {"send": 1}
    broker.advance()
    assert [each.body for each in broker.messages("shared")] == [b"another one", b"lost"]
    assert lost.actions(file, "--yes") == {"exists": 1}


def test_messages_of_a_batch_without_ids_of_their_own_are_refused(
    broker: LocalBroker, store: Path, file: Path
) -> None:
    lost = Lost(broker, "batch")
    asyncio.run(send_batch(broker.address, "batch", [""] * 3, lost.due_ms))
    lost.lose()
    repair(store, file)
    assert lost.actions(file, "--yes") == {"refused": 3}
