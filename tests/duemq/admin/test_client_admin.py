from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.admin.client_admin import ClientAdminProcessor
from duemq.registry.clients import ClientTable
from duemq.registry.heartbeats import ConsumerEntry, Heartbeat
from duemq.registry.managers import Identity
from duemq.registry.subscriptions import parse_expression
from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.store import MessageStore
from tests.support.fakes import HOST, FakePeer
from tests.support.stores import open_store, put_one


class Rig:
    def __init__(self, store: MessageStore, version: int = 479) -> None:
        self.peer, self.clients = FakePeer("a", 5_555), ClientTable()
        reported = (parse_expression("T", "a"),)
        entry = ConsumerEntry("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_X", reported)
        self.clients.heartbeat(
            Heartbeat("c", ("P",), (entry,)), self.peer, language="GO", version=version, now_ms=9
        )
        identity = Identity("broker-a", "C", 0, HOST)
        self.handlers = ClientAdminProcessor(self.clients, store, identity).handlers()

    async def call(self, code: int, body: bytes = b"", **fields: str) -> Response | None:
        return await self.handlers[code](Request(code, fields, body))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


CONNECTION = {"clientAddr": "127.0.0.1:5555", "clientId": "c", "language": "GO", "version": 479}


def test_connections_of_groups(run: Callable[..., Any], store: MessageStore) -> None:
    rig = Rig(store)
    body = json.loads(run(rig.call(203, consumerGroup="G")).body)
    assert body["connectionSet"] == [CONNECTION]
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert body["subscriptionTable"]["T"]["subString"] == "a"
    assert run(rig.call(203, consumerGroup="none")).code == 206
    body = json.loads(run(rig.call(204, producerGroup="P")).body)
    assert body == {"connectionSet": [CONNECTION]}
    assert run(rig.call(204, producerGroup="none")).code == 1
    body = json.loads(run(rig.call(328)).body)
    assert body["data"]["P"][0]["remoteIP"] == "/127.0.0.1:5555"
    assert body["data"]["P"][0]["lastUpdateTimestamp"] == 9


def test_running_info_is_relayed_untouched(run: Callable[..., Any], store: MessageStore) -> None:
    rig = Rig(store)
    reported = Response(0, "fine", {"x": "y"}, b'{"mqTable":{{"queueId":0}:1}}')
    rig.peer.responses[307] = reported
    fields = {"consumerGroup": "G", "clientId": "c", "jstackEnable": "false"}
    assert run(rig.call(307, **fields)) is reported
    assert rig.peer.calls[0].fields == fields


@pytest.mark.parametrize(("fault", "code"), [(TimeoutError(), 207), (ConnectionError("x"), 1)])
def test_a_client_that_does_not_answer(
    run: Callable[..., Any], store: MessageStore, fault: Any, code: int
) -> None:
    rig = Rig(store)
    rig.peer.responses[307] = fault
    assert run(rig.call(307, consumerGroup="G", clientId="c")).code == code


def test_a_v5_client_that_cannot_respond_has_not_disconnected(
    run: Callable[..., Any], store: MessageStore
) -> None:
    rig = Rig(store)
    context = CallContext("c", ("10.0.0.7", 1), "GO", "", None, None)
    client = V5Client(context, lambda client, request: None)
    rig.peer.call = client.call
    response = run(rig.call(307, consumerGroup="G", clientId="c"))
    assert response.code == 1
    assert response.remark == (
        "consumer <c> gave no response: v5 clients (gRPC) do not support request 307"
    )


@pytest.mark.parametrize(
    ("version", "group", "client"), [(479, "none", "c"), (479, "G", "none"), (61, "G", "c")]
)
def test_a_client_that_cannot_be_asked(
    run: Callable[..., Any], store: MessageStore, version: int, group: str, client: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        run(Rig(store, version).call(307, consumerGroup=group, clientId=client))
    assert refusal.value.code == 1


def test_a_message_is_consumed_directly(run: Callable[..., Any], store: MessageStore) -> None:
    rig = Rig(store)
    rig.peer.responses[309] = Response(body=b"result")
    row = put_one(store, "T", body=b"wanted")
    offset_id = f"7F00000100002A9F{int(row['phys_offset']):016X}"
    fields = {"consumerGroup": "G", "clientId": "c", "msgId": offset_id}
    assert run(rig.call(309, **fields)).body == b"result"
    (reported,) = rig.peer.calls
    assert reported.fields == fields | {"brokerName": "broker-a"}
    assert reported.body == bytes(store.record_bytes(0, int(row["record_size"])))
    for wrong in ("zz", "7F00000100002A9F00000000000F0000"):
        with pytest.raises(RequestError):
            run(rig.call(309, **(fields | {"msgId": wrong})))


@pytest.mark.parametrize(
    ("response", "table"),
    [
        (
            b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}',
            b'{{"brokerName":"b","queueId":0,"topic":"T"}:5}',
        ),
        (b"{}", b"{}"),
        (b"garbage", b"{}"),
    ],
)
def test_progress_that_clients_report(
    run: Callable[..., Any], store: MessageStore, response: bytes, table: bytes
) -> None:
    rig = Rig(store)
    rig.peer.responses[221] = Response(body=response)
    found = run(rig.call(223, topic="T", group="G", clientAddr="")).body
    assert found == b'{"consumerTable":{"c":' + table + b'},"messageQueueTable":{}}'
    assert run(rig.call(223, topic="T", group="none")).code == 206
    assert run(Rig(store, 27).call(223, topic="T", group="G")).code == 1
