"""Responses to the sends of a turn of the ingest."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.net import codec
from duemq.net.layout import BINARY_TYPE, JSON_TYPE
from duemq_common.clock import FakeClock
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Response
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from tests.duemq.net.conftest import Run
from tests.duemq.send.test_ingest import Bench, fast, plain, responses
from tests.support.send_path import SendPath, send_request
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook


@pytest.mark.parametrize("way", [fast, plain])
@pytest.mark.parametrize("serialize_type", [JSON_TYPE, BINARY_TYPE])
def test_response_to_a_send(run: Run, way: Any, serialize_type: int) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as peer:
            peer.send(way(-7, queueId="2"), serialize_type=serialize_type)
            data = await peer.read_frame()
            assert data[4] == serialize_type
            frame = codec.next_frame(memoryview(data), 0, len(data))
            assert frame is not None
            response = codec.decode_frame(memoryview(data), frame)
            assert isinstance(response, codec.ReceivedResponse)
            assert (response.opaque, response.response.code) == (-7, 0)
            fields = response.response.fields
            assert fields is not None
            assert list(fields) == [
                "queueId",
                "transactionId",
                "msgId",
                "TRACE_ON",
                "MSG_REGION",
                "queueOffset",
            ]
            assert fields["queueId"] == "2"
            assert fields["msgId"] == "7F00000100002A9F0000000000000000"
            assert len(fields["transactionId"]) == (2 if way is fast else 32)

    run(main())


def test_kernel_and_codec_encode_equal_responses(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as peer:
            peer.send(fast(1))
            data = await peer.read_frame()
            fields = {
                "queueId": "1",
                "transactionId": "U1",
                "msgId": "7F00000100002A9F0000000000000000",
                "TRACE_ON": "true",
                "MSG_REGION": "DefaultRegion",
                "queueOffset": "0",
            }
            assert data == b"".join(codec.encode_response(Response(0, None, fields), 1))

    run(main())


NOW = FakeClock().now_ms()


@pytest.mark.parametrize("serialize_type", [JSON_TYPE, BINARY_TYPE])
@pytest.mark.parametrize(
    ("rule", "properties", "changes", "out_ms"),
    [
        ("a delay", {"TIMER_DELAY_MS": "12345"}, {}, (NOW + 12_344) // 1_000 * 1_000),
        ("a time", {"TIMER_DELIVER_MS": str(NOW + 5)}, {}, (NOW + 4) // 1_000 * 1_000),
        ("long names", {"TIMER_DELAY_SEC": "9"}, {"code": 10}, (NOW + 8_999) // 1_000 * 1_000),
        ("due already", {"TIMER_DELIVER_MS": "5"}, {}, None),
        ("no timer", {}, {}, None),
        ("a retry topic", {"TIMER_DELAY_SEC": "9"}, {"topic": "%RETRY%g", "queueId": "0"}, None),
        ("a batch", {"TIMER_DELAY_SEC": "9"}, {"batch": "true", "body": "one"}, None),
    ],
)
def test_the_response_to_a_timer_has_a_recall_handle(
    run: Run,
    serialize_type: int,
    rule: str,
    properties: dict[str, str],
    changes: dict[str, Any],
    out_ms: int | None,
) -> None:
    async def main() -> None:
        front = SendPath()
        front.topics.install("%RETRY%g", 1)
        front.hooks.append(TimerHook(front.table, TimerConfig(), lambda time_ms: 0))
        text = encode_properties({"UNIQ_KEY": "U1"} | properties).decode()
        made: dict[str, Any] = {"properties": text} | changes
        if "body" in made:
            made["body"] = bytes.fromhex("0000001b 00000000 00000000 00000000 00000005") + b"hello"
            made["body"] += b"\0\0"
        async with Bench(front) as peer:
            peer.send(send_request(**made), serialize_type=serialize_type)
            fields = (await responses(peer, 1))[1].fields
            assert fields is not None
            assert fields["queueId"] == made.get("queueId", "1")
            handle = RecallHandle("T", "broker-a", str((out_ms or 0) + 1), "U1").encode()
            assert fields.get("recallHandle") == (handle if out_ms else None), rule
            names = ["TRACE_ON", "MSG_REGION", *(["recallHandle"] if out_ms else []), "queueOffset"]
            assert list(fields)[-len(names) :] == names

    run(main())


@pytest.mark.parametrize("way", [fast, plain])
def test_oneway_sends_are_stored_without_a_response(run: Run, way: Any) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as peer:
            peer.send(way(1, oneway=True))
            peer.send(way(2, topic="closed", oneway=True))
            peer.send(fast(3))
            assert list(await responses(peer, 1)) == [3]
        assert front.log.bodies == [b"1", b"3"]

    run(main())


def refuse_second(batch: PutBatch, now_ms: int) -> None:
    for index in range(batch.count):
        if batch.body(index) == b"2":
            batch.refuse(index, 13, "not today")


@pytest.mark.parametrize("way", [fast, plain])
def test_responses_to_refused_rows_have_code_and_remark(run: Run, way: Any) -> None:
    async def main() -> None:
        front = SendPath(hooks=[refuse_second])
        async with Bench(front) as peer:
            for opaque in (1, 2, 3):
                peer.send(way(opaque))
            found = await responses(peer, 3)
        assert {opaque: each.code for opaque, each in found.items()} == {1: 0, 2: 13, 3: 0}
        assert found[2].remark == "not today"
        assert found[2].fields == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
        assert front.log.bodies == [b"1", b"3"]

    run(main())


def long_id(batch: PutBatch, now_ms: int) -> None:
    for index in range(batch.count):
        batch.set_properties(index, {"UNIQ_KEY": "L" * 300})


def test_a_response_with_an_id_too_long_for_the_kernel(run: Run) -> None:
    async def main() -> None:
        async with Bench(SendPath(hooks=[long_id])) as peer:
            peer.send(fast(1))
            fields = (await responses(peer, 1))[1].fields
            assert fields is not None
            assert fields["transactionId"] == "L" * 300

    run(main())
