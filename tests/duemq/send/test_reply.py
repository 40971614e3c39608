from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.registry.clients import ClientTable
from duemq.registry.heartbeats import Heartbeat
from duemq.registry.managers import Identity
from duemq.send.reply import ReplyProcessor
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.fakes import HOST, FakePeer, FakeTopics, fake_topic
from tests.support.stores import open_store

LETTERS = "abcdefghi"
HEADER = {
    "producerGroup": "P",
    "topic": "C_REPLY_TOPIC",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "5",
    "flag": "7",
    "properties": "MSG_TYPE\x01reply\x02CORRELATION_ID\x01id\x02REPLY_TO_CLIENT\x01asker\x02",
}


class Rig:
    def __init__(self, store: MessageStore) -> None:
        self.store, self.clients, self.asker = store, ClientTable(), FakePeer("asker")
        self.asker.responses[326] = Response()
        self.clients.heartbeat(
            Heartbeat("asker", ("P",), ()), self.asker, language="JAVA", version=1, now_ms=0
        )
        self.processor = ReplyProcessor(
            store,
            FakeTopics(fake_topic("C_REPLY_TOPIC", 1, 1)),
            self.clients,
            self.put,
            Identity("b", "C", 0, HOST),
            FakeClock(99),
            suffix=b"CLUSTER\x01C\x02",
        )

    async def put(self, batch: PutBatch) -> None:
        self.store.put(batch)

    async def reply(self, code: int = 324, **changes: str) -> Response | None:
        fields = HEADER | changes
        if code == 325:
            fields = dict(zip(LETTERS, fields.values(), strict=True))
        peer = FakePeer("replier", 4_444)
        return await self.processor.handlers()[code](Request(code, fields, b"body", peer=peer))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_is_pushed_and_stored(
    run: Callable[..., Any], store: MessageStore, code: int
) -> None:
    rig = Rig(store)
    response = run(rig.reply(code))
    offset_id = "7F00000100002A9F0000000000000000"
    assert (response.code, response.fields) == (
        0,
        {"msgId": offset_id, "queueId": "0", "queueOffset": "0"},
    )
    (push,) = rig.asker.calls
    assert (push.code, push.body) == (326, b"body")
    assert push.fields == HEADER | {
        "properties": HEADER["properties"] + "PUSH_REPLY_TIME\x0199\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "127.0.0.1:4444",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": "99",
    }
    record = store.read_record(0)
    assert (record.topic, record.body, record.flag) == ("C_REPLY_TOPIC", b"body", 7)
    assert record.properties["CLUSTER"] == "C"


@pytest.mark.parametrize(
    ("properties", "response", "reason"),
    [
        ("", None, "REPLY_TO_CLIENT"),
        ("REPLY_TO_CLIENT\x01gone\x02", None, "not found"),
        (HEADER["properties"], TimeoutError(), "3 s"),
        (HEADER["properties"], ConnectionError("closed"), "closed"),
        (HEADER["properties"], Response(1, "busy"), "busy"),
    ],
)
def test_a_reply_whose_push_fails_gets_code_1_and_is_stored(
    run: Callable[..., Any],
    store: MessageStore,
    properties: str,
    response: Any | Response | None,
    reason: str,
) -> None:
    rig = Rig(store)
    rig.asker.responses[326] = response or Response()
    found = run(rig.reply(properties=properties))
    assert found.code == 1
    assert reason in found.remark
    assert store.queue_bounds("C_REPLY_TOPIC", 0) == (0, 1)


def test_replies_are_not_stored_without_a_topic(
    run: Callable[..., Any], store: MessageStore
) -> None:
    assert run(Rig(store).reply(topic="unknown")).fields["msgId"] == "0"
    assert store.max_offset == 0
