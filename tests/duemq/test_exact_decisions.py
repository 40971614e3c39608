"""Decisions are exact: what is answered is what happens, whatever keys and ids look like."""

from __future__ import annotations

import asyncio
import errno
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.net.decisions import ACTIONS
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from message_store.index.index_service import IndexService
from message_store.log.batch import PutBatch
from message_store.log.offset_id import encode_offset_id
from tests.support.running_broker import BrokerClient, running, small

HOUR_MS = 3_600_000
KEYS = {"messageDelayLevel": "1s 60s", "maxIndexNum": "100000", "maxHashSlotNum": "1000"}


async def cancel(remote: BrokerClient, **command: Any) -> list[tuple[str, int]]:
    response = await remote.call(RequestCode.CANCEL_PENDING, {}, json.dumps(command).encode())
    assert response.code == 0, response.remark
    results = json.loads(bytes(response.body))["results"]
    return [(result["verdict"], result.get("messages", 0)) for result in results]


async def send_batch(remote: BrokerClient, properties: list[bytes], shared: bytes = b"") -> Any:
    """Send messages as one batch; `shared` are the properties of the batch."""
    body = b"".join(
        struct.pack(">iiiii", 23 + len(text), 0, 0, 0, 1)
        + b"x"
        + struct.pack(">h", len(text))
        + text
        for text in properties
    )
    fields = {
        "a": "p",
        "b": "T",
        "c": "TBW102",
        "d": 1,
        "e": 0,
        "f": 0,
        "g": 1,
        "h": 0,
        "i": shared.decode(),
        "j": 0,
        "k": "false",
        "m": "true",
    }
    return await remote.call(320, fields, body)


def put_raw(broker: Broker, properties: bytes) -> str:
    """Put a message with any bytes as properties through the hooks; return its offset id."""
    batch = PutBatch(1)
    host = broker.parts.identity.host
    batch.add(
        topic_index=broker.store.topics.add("T"),
        queue_id=0,
        body=b"x",
        properties=properties,
        born_ms=1,
        born_host=host,
        store_host=host,
    )
    broker.parts.put_path.put(batch)
    assert batch.rows[0]["status"] == 0, batch.remarks
    return encode_offset_id(*host, int(batch.rows[0]["phys_offset"]))


@pytest.mark.finding("A13")
@pytest.mark.parametrize("delay", ["TIMER_DELIVER_MS", "DELAY"])
def test_every_message_of_a_key_is_cancelled(tmp_path: Path, delay: str) -> None:
    """All messages of a client's batch have its UNIQ_KEY."""

    async def scene() -> None:
        clock = FakeClock()
        keys = KEYS | {"maxIndexNum": "250"}  # several index files
        async with running(small(tmp_path, **keys), clock=clock) as (broker, remote):
            value = 2 if delay == "DELAY" else clock.now_ms() + 60_000
            assert (await remote.send("T", b"warm")).code == 0
            text = f"{delay}\x01{value}\x02".encode()
            for _ in range(4 if delay != "DELAY" else 0):
                response = await send_batch(remote, [text] * 100, b"UNIQ_KEY\x01BATCH\x02")
                assert response.code == 0, response.remark
            for _ in range(400 if delay == "DELAY" else 0):
                assert (await remote.send("T", b"x", UNIQ_KEY="BATCH", DELAY="2")).code == 0
            assert await cancel(remote, ids=["BATCH"], topic="T") == [("done", 400)]
            assert await cancel(remote, ids=["BATCH"], topic="T") == [("done", 0)]
            clock.advance(120_000)
            assert broker.store.queue_bounds("T", 0) == (0, 1)

    asyncio.run(scene())


@pytest.mark.finding("E2")
def test_an_id_of_another_broker_names_no_message_of_this_one(tmp_path: Path) -> None:
    async def scene() -> None:
        clock = FakeClock()
        async with running(small(tmp_path, **KEYS), clock=clock) as (_, remote):
            assert (await remote.send("T", b"warm")).code == 0
            due = str(clock.now_ms() + HOUR_MS)
            ids = []
            for more in ({"TIMER_DELIVER_MS": due}, {"DELAY": "2"}):
                sent = await remote.send("T", b"innocent", UNIQ_KEY="7F" * 16, **more)
                ids.append((sent.fields or {})["msgId"])
            for mine in ids:
                offset = int(mine[-16:], 16)
                foreign = [
                    f"DEADBEEF00000001{offset:016X}",
                    encode_offset_id(b"\x7f\x00\x00\x02", int(mine[8:16], 16), offset),
                    encode_offset_id(b"\x7f\x00\x00\x01", 9, offset),
                    encode_offset_id(bytes(12) + b"\x7f\x00\x00\x01", int(mine[8:16], 16), offset),
                ]
                for name in foreign:
                    assert await cancel(remote, ids=[name]) == [("unknown", 0)], name
                assert await cancel(remote, ids=[mine], topic="Other") == [("unknown", 0)]
                assert await cancel(remote, ids=[mine.lower()], topic="T") == [("done", 1)]

    asyncio.run(scene())


@pytest.mark.finding("A4")
def test_an_id_that_points_into_a_body_names_nothing(tmp_path: Path) -> None:
    """Bytes inside a body can look like a record, and name the host of this broker."""

    async def scene() -> None:
        async with running(small(tmp_path, **KEYS), clock=FakeClock()) as (broker, remote):
            sent = await remote.send("T", b"x", DELAY="2")
            mine = (sent.fields or {})["msgId"]
            start = int(mine[-16:], 16)
            size = broker.store.read_record(start).total_size
            forged = bytearray(broker.store.record_bytes(start, size))
            place = 84 + 4 + 200  # behind a body's header, somewhere inside
            end = broker.store.max_offset
            forged[28:36] = struct.pack(">q", end + place)
            body = bytes(place - 88) + bytes(forged)
            assert (await remote.send("T", body, UNIQ_KEY="CARRIER")).code == 0
            name = f"{mine[:16]}{end + place:016X}"
            assert await cancel(remote, ids=[name]) == [("unknown", 0)]

    asyncio.run(scene())


def no_room(index: IndexService) -> bool:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.finding("E2")
def test_a_full_disk_that_stops_the_index_makes_nothing_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        clock = FakeClock()
        async with running(small(tmp_path, **KEYS), clock=clock) as (broker, remote):
            assert (await remote.send("T", b"warm")).code == 0
            monkeypatch.setattr(IndexService, "_index_piece", no_room)
            due = str(clock.now_ms() + HOUR_MS)
            names = [f"7F0000010A2B18B4{n:016X}" for n in range(20)]
            for at, name in enumerate(names):
                more = {"TIMER_DELIVER_MS": due} if at % 2 else {"DELAY": "2"}
                assert (
                    await remote.send("T", b"x", UNIQ_KEY=name, KEYS=f"k{at}", **more)
                ).code == 0
                assert await cancel(remote, ids=[name]) == [("done", 1)]
                assert await cancel(remote, ids=[name]) == [("done", 0)]
                assert await cancel(remote, keys=[f"k{at}"]) == [("done", 0)]
            assert broker.store.index.lag_bytes
            clock.advance(2 * HOUR_MS)
            assert broker.store.queue_bounds("T", 0)[1] == 1

    asyncio.run(scene())


@pytest.mark.finding("E2")
def test_without_an_index_a_key_is_an_error_and_no_unknown(tmp_path: Path) -> None:
    async def scene() -> None:
        keys = KEYS | {"messageIndexEnable": "false"}
        async with running(small(tmp_path, **keys), clock=FakeClock()) as (_, remote):
            sent = await remote.send("T", b"x", DELAY="2", UNIQ_KEY="7F" * 16)
            response = await remote.call(
                RequestCode.CANCEL_PENDING, {}, json.dumps({"ids": ["7F" * 16]}).encode()
            )
            assert (response.code, "messageIndexEnable" in (response.remark or "")) == (1, True)
            assert await cancel(remote, ids=[(sent.fields or {})["msgId"]]) == [("done", 1)]

    asyncio.run(scene())


INVALID = (
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc3",
    b"a\xffb",
    "\ud83d".encode("utf-8", "surrogatepass"),
)


@pytest.mark.finding("E9")
def test_keys_that_are_no_text_are_decided_on_by_offset(tmp_path: Path) -> None:
    async def scene() -> None:
        clock = FakeClock()
        async with running(small(tmp_path, **KEYS), clock=clock) as (broker, remote):
            assert (await remote.send("T", b"warm")).code == 0
            due = b"TIMER_DELIVER_MS\x01%d\x02" % (clock.now_ms() + HOUR_MS)
            for code in ACTIONS:
                for delay in (due, b"DELAY\x012\x02"):
                    texts = [
                        b"UNIQ_KEY\x01%b\x02KEYS\x01%b\x02%b" % (invalid, invalid, delay)
                        for invalid in INVALID
                    ]
                    names = [put_raw(broker, text) for text in texts]
                    command = {"ids": names} | (
                        {"delay_ms": 9} if code == RequestCode.MOVE_PENDING else {}
                    )
                    for dry_run in (True, False, False):
                        body = json.dumps(command | {"dry_run": dry_run}).encode()
                        response = await remote.call(code, {}, body)
                        assert response.code == 0, response.remark
            for name in ("\ud800", "\udfff" * 16, "\x00", "\ufffd\ufffd", "é" * 16, "A" * 300):
                response = await remote.call(
                    RequestCode.CANCEL_PENDING, {}, json.dumps({"ids": [name]}).encode()
                )
                assert response.code in (0, 13), response.remark

    asyncio.run(scene())


@pytest.mark.sampled
@pytest.mark.finding("E9")
@pytest.mark.parametrize("code", [34, 41, 42, 46, *ACTIONS, 9_002, 9_014, 9_015])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"ids":['])
def test_a_body_nested_too_deeply_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, opening: bytes
) -> None:
    async def scene() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (_, remote):
            response = await remote.call(code, {}, opening * 100_000)
            assert response.code in (1, 3, 13), response.remark

    asyncio.run(scene())
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.finding("3D13")
@pytest.mark.parametrize("removed", [False, True])
def test_an_unknown_name_may_be_of_a_removed_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    async def scene() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (broker, remote):
            if removed:  # as if retention had removed the first file of the log
                monkeypatch.setattr(type(broker.store), "min_offset", property(lambda store: 1))
            body = json.dumps({"ids": ["F" * 32]}).encode()
            response = await remote.call(RequestCode.CANCEL_PENDING, {}, body)
            [result] = json.loads(bytes(response.body))["results"]
            assert result["verdict"] == "unknown"
            assert ("retention has removed" in result.get("remark", "")) == removed

    asyncio.run(scene())
