"""Sends decoded in Python: validation, retries, dead letters, batches, half messages."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from duemq.send.responses import DecodedSend, MustWait
from duemq.send.send import ENTRIES_OF_STEP, STALE_NAMES
from duemq_common.errors import RequestError
from duemq_common.request import Request
from message_store.log.batch import PutBatch
from tests.support.fakes import FakePeer
from tests.support.send_path import BORN, SendPath, plain_way, row_of, send_request
from timer_store import names


def refused(front: SendPath, request: Request) -> RequestError:
    with pytest.raises(RequestError) as caught:
        plain_way(front, request)
    return caught.value


def batch_body(*entries: tuple[bytes, bytes], flag: int = 3) -> bytes:
    body = b""
    for content, properties in entries:
        size = 20 + len(content) + 2 + len(properties)
        body += struct.pack("!iiiii", size, 0, 0, flag, len(content)) + content
        body += struct.pack("!h", len(properties)) + properties
    return body


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"topic": " "}, 29, "blank"),
        ({"topic": "a b"}, 29, "character"),
        ({"topic": "a" * 128}, 29, "longer than 127"),
        ({"topic": "%RETRY%" + "a" * 250}, 29, "longer than 255"),
        ({"topic": "closed"}, 16, "closed"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "SCHEDULE_TOPIC_XXXX"),
        ({"queueId": "4"}, 29, r"queueId\[4\]"),
        ({"topic": "%RETRY%absent", "queueId": "0"}, 26, "absent"),
        ({"body": b""}, 13, "no body"),
        ({"body": bytes(20_001)}, 13, "20001 bytes"),
        ({"properties": "KEYS\x01" + "k" * 32_760 + "\x02"}, 13, "its properties have"),
        ({"producerGroup": None}, 1, "<a>"),
        ({"queueId": "x"}, 1, "<e>"),
        ({"queueId": "2147483648"}, 1, "<e>"),
        ({"bornTimestamp": None}, 1, "<g>"),
    ],
)
def test_codes_of_refused_sends(changes: dict[str, Any], code: int, reason: str) -> None:
    front = SendPath()
    front.topics.install("%RETRY%absent", 1)
    error = refused(front, send_request(**changes))
    assert error.code == code
    assert pytest.raises(RequestError, match=reason).matches(error)


def test_a_negative_queue_id_selects_any_queue() -> None:
    front = SendPath()
    queues = {plain_way(front, send_request(queueId="-1"))[0].queue_id for _ in range(100)}
    assert queues == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("priority", "more", "queue_id"),
    [("0", {}, 0), ("3", {}, 3), ("99", {}, 3), ("x", {}, 1)]
    + [("2", {name: "1"}, 2) for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS")],
)
def test_a_priority_selects_the_queue_with_a_delay_too(
    priority: str, more: dict[str, str], queue_id: int
) -> None:
    given = {"_SYS_MSG_PRIORITY_": priority} | more
    text = "".join(f"{name}\x01{value}\x02" for name, value in given.items())
    send, batch = plain_way(SendPath(), send_request(queueId="1", properties=text))
    assert send.queue_id == queue_id
    assert batch.properties(0)["_SYS_MSG_PRIORITY_"] == priority
    assert batch.rows[0]["queue_id"] == queue_id


@pytest.mark.parametrize("more", [{"__SHARDINGKEY": "1"}, {"__SHARDINGKEY": "1", "DELAY": "1"}])
def test_a_message_in_order_has_no_priority(more: dict[str, str]) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in more.items())
    text += "_SYS_MSG_PRIORITY_\x012\x02"
    send, batch = plain_way(SendPath(), send_request(queueId="1", properties=text))
    assert send.queue_id == batch.rows[0]["queue_id"] == 1
    assert "_SYS_MSG_PRIORITY_" not in batch.properties(0)


def test_a_retry_with_a_priority_stays_in_its_queue() -> None:
    front = SendPath()
    front.topics.install("%RETRY%g", 4)
    text = "_SYS_MSG_PRIORITY_\x013\x02DELAY\x013\x02"
    request = send_request(topic="%RETRY%g", queueId="0", reconsumeTimes="1", properties=text)
    send, batch = plain_way(front, request)
    assert send.queue_id == batch.rows[0]["queue_id"] == 0
    assert batch.properties(0)["_SYS_MSG_PRIORITY_"] == "3"


def test_the_broker_adds_its_properties() -> None:
    send, batch = plain_way(
        SendPath(), send_request(properties="a\x01b\x02\x01x\x02c\x02CLUSTER\x01y")
    )
    assert send.transaction_id is not None
    assert batch.properties(0) == {
        "a": "b",
        "UNIQ_KEY": send.transaction_id,
        "MSG_REGION": "DefaultRegion",
        "CLUSTER": "DefaultCluster",
        "TRACE_ON": "true",
    }


def test_long_and_short_field_names_are_equivalent() -> None:
    front = SendPath()
    rows = [row_of(plain_way(front, send_request(code=code, flag="7"))[1]) for code in (10, 310)]
    assert rows[0] == rows[1]
    assert rows[0]["flag"] == 7


def test_sends_before_the_accept_time_are_refused() -> None:
    front = SendPath()
    front.rules = replace(front.rules, start_accept_ms=front.clock.now_ms() + 10)
    front.sender._accepting = False
    assert not front.sender.accepts()
    assert refused(front, send_request()).code == 1
    front.clock.advance(10)
    assert front.sender.accepts()
    plain_way(front, send_request())


# New topics.


def fill_after_waits(front: SendPath, request: Request) -> tuple[DecodedSend, PutBatch, int]:
    async def main() -> tuple[DecodedSend, PutBatch, int]:
        batch, waits = PutBatch(8), 0
        while True:
            try:
                send = front.sender.fill(request, BORN, batch)
                if send.before_response is not None:
                    await send.before_response()
                return send, batch, waits
            except MustWait as wait:
                waits += 1
                await wait.prepare()

    return asyncio.run(main())


def test_an_unknown_topic_is_created_and_registered() -> None:
    front = SendPath()
    send, batch, waits = fill_after_waits(front, send_request(topic="New", queueId="3"))
    assert (waits, send.count, front.topics.reported) == (1, 1, ["New"])
    assert front.table.name(int(batch.rows[0]["topic_index"])) == "New"
    assert fill_after_waits(front, send_request(topic="New"))[2] == 0


def test_a_topic_without_a_template_is_refused_with_17() -> None:
    with pytest.raises(RequestError) as caught:
        fill_after_waits(SendPath(), send_request(topic="New", defaultTopic="other"))
    assert caught.value.code == 17


# Retries.


@pytest.mark.parametrize(
    ("times", "times_max", "version", "locked", "dead"),
    [
        (16, None, 479, False, False),
        (17, None, 479, False, True),
        (3, "3", 479, False, False),
        (4, "3", 479, False, True),
        (4, "3", 120, False, False),
        (0, None, 479, True, True),
    ],
)
def test_a_message_beyond_its_maximum_of_retries_is_a_dead_letter(
    times: int, times_max: str | None, version: int, locked: bool, dead: bool
) -> None:
    front = SendPath()
    front.topics.install("%RETRY%g", 1)
    if locked:
        front.locked.add("g")
    request = send_request(
        topic="%RETRY%g",
        queueId="0",
        reconsumeTimes=str(times),
        maxReconsumeTimes=times_max,
        properties="UNIQ_KEY\x01U\x02DELAY\x014\x02",
    )
    request.version = version
    _, batch, _ = fill_after_waits(front, request)
    row = batch.rows[0]
    assert front.table.name(int(row["topic_index"])) == ("%DLQ%g" if dead else "%RETRY%g")
    assert (row["queue_id"], row["reconsume_times"]) == (0, times)
    assert row["delay_level"] == (-1 if dead else 4)


# Half messages.


def test_a_transaction_becomes_a_half_message() -> None:
    properties = "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02DELAY\x013\x02"
    front = SendPath()
    send, batch = plain_way(front, send_request(properties=properties, queueId="2", sysFlag="4"))
    row = batch.rows[0]
    assert front.table.name(int(row["topic_index"])) == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert (row["queue_id"], row["sys_flag"], row["delay_level"], send.queue_id) == (0, 0, 0, 2)
    assert batch.properties(0).items() >= {"REAL_TOPIC": "T", "REAL_QID": "2"}.items()


def test_transactional_messages_can_be_refused() -> None:
    front = SendPath()
    front.rules = replace(front.rules, reject_transactions=True)
    assert refused(front, send_request(properties="TRAN_MSG\x01true\x02")).code == 16


# Batches.


def batch_request(*entries: tuple[bytes, bytes], code: int = 320, **changes: Any) -> Request:
    changes = {"properties": "UNIQ_KEY\x01B\x02WAIT\x01true\x02"} | changes
    return send_request(code=code, body=batch_body(*entries), **changes)


@pytest.mark.parametrize("code", [320, 310, 10])
def test_a_batch_adds_one_row_per_message(code: int) -> None:
    request = batch_request(
        (b"one", b"KEYS\x01k\x02UNIQ_KEY\x011\x02"),
        (b"two", b"TAGS\x01t"),
        (b"three", b""),
        code=code,
        batch="true",
    )
    send, batch = plain_way(SendPath(), request)
    assert (send.first, send.count, send.transaction_id, send.queue_id) == (0, 3, "B", 1)
    assert [batch.body(index) for index in range(3)] == [b"one", b"two", b"three"]
    assert batch.property_text(0).startswith(b"KEYS\x01k\x02UNIQ_KEY\x011\x02UNIQ_KEY\x01B\x02WAIT")
    assert batch.properties(0)["UNIQ_KEY"] == "B"
    assert batch.properties(1)["TAGS"] == "t"
    assert batch.rows[2]["flag"] == 3


def test_messages_of_an_old_clients_batch_keep_their_ids() -> None:
    request = batch_request((b"one", b"UNIQ_KEY\x011\x02"), properties="WAIT\x01true")
    send, batch = plain_way(SendPath(), request)
    assert send.transaction_id is None
    assert batch.properties(0)["UNIQ_KEY"] == "1"


@pytest.mark.parametrize(
    ("entry", "changes"),
    [
        ((b"x", b"DELAY\x011\x02"), {}),
        ((b"x", b"TRAN_MSG\x01true\x02"), {}),
        ((b"x", b""), {"properties": "DELAY\x011\x02"}),
        ((b"x", b""), {"topic": "%RETRY%g", "queueId": "0"}),
        ((b"x", b"K\x01" + b"k" * 32_700), {}),
    ],
)
def test_refused_batches(entry: tuple[bytes, bytes], changes: dict[str, Any]) -> None:
    front = SendPath()
    front.topics.install("%RETRY%g", 1)
    assert refused(front, batch_request((b"good", b""), entry, **changes)).code == 13


def test_the_hooks_refuse_invalid_timers_of_a_batch_together() -> None:
    """T23: Apache does not evaluate them; its messages are visible at once."""
    entries = ((b"one", b"TIMER_DELAY_MS\x0110\x02"), (b"two", b""), (b"three", b""))
    send, batch = plain_way(SendPath(), batch_request(*entries))
    assert batch.filled["timer_value"].tolist() == [10, 0, 0]
    assert batch.together == [(0, 3)]
    assert not send.recallable


def large_batch(count: int = 4 * ENTRIES_OF_STEP, **changes: Any) -> Request:
    entries = [(b"%d" % number, b"UNIQ_KEY\x01U%d\x02" % number) for number in range(count)]
    return replace(batch_request(*entries, properties="", **changes), peer=FakePeer())


@pytest.mark.finding("3S7")
def test_a_large_batch_is_decoded_in_steps_of_the_event_loop() -> None:
    front, request = SendPath(), large_batch()
    front.rules = replace(front.rules, body_bytes_max=1 << 20)
    direct = PutBatch(1)
    front.sender.fill(replace(request, peer=None), BORN, direct)

    async def main() -> tuple[int, PutBatch]:
        batch, turns = PutBatch(8), 0
        plain_row = batch.count
        with pytest.raises(MustWait) as wait:
            front.sender.fill(request, BORN, batch)
        decoding = asyncio.ensure_future(wait.value.prepare())
        while not decoding.done():
            turns += 1
            await asyncio.sleep(0)
        batch.add(
            topic_index=0,
            queue_id=0,
            body=b"before",
            properties=b"",
            born_ms=1,
            born_host=BORN,
            store_host=BORN,
        )
        send = front.sender.fill(request, BORN, batch)
        assert (send.first, send.count) == (plain_row + 1, direct.count)
        return turns, batch

    turns, batch = asyncio.run(main())
    assert turns > 4
    assert batch.together == [(1, direct.count)]
    for index in range(direct.count):
        assert row_of(batch, index + 1) == row_of(direct, index)


@pytest.mark.finding("3S7")
def test_a_decoded_batch_is_used_for_its_own_request_only() -> None:
    front, request = SendPath(), large_batch()
    front.rules = replace(front.rules, body_bytes_max=1 << 20)
    other = replace(large_batch(count=3), peer=request.peer)

    async def main() -> None:
        with pytest.raises(MustWait) as wait:
            front.sender.fill(request, BORN, PutBatch(8))
        await wait.value.prepare()
        assert front.sender.fill(other, BORN, PutBatch(8)).count == 3
        with pytest.raises(MustWait):
            front.sender.fill(request, BORN, PutBatch(8))

    asyncio.run(main())


@pytest.mark.finding("3S7")
def test_the_batch_of_a_closed_connection_is_not_decoded_further() -> None:
    front, request = SendPath(), large_batch()
    front.rules = replace(front.rules, body_bytes_max=1 << 20)

    async def main() -> None:
        with pytest.raises(MustWait) as wait:
            front.sender.fill(request, BORN, PutBatch(8))
        assert isinstance(request.peer, FakePeer)
        request.peer.close()
        await wait.value.prepare()
        with pytest.raises(MustWait):
            front.sender.fill(request, BORN, PutBatch(8))

    asyncio.run(main())


def test_timers_of_a_batch_lose_the_properties_of_an_earlier_delivery() -> None:
    assert frozenset(names.STALE_NAMES) == STALE_NAMES
    text = b"K\x01v\x02TIMER_DELAY_MS\x0110\x02DUEMQ_DUE_MS\x011\x02REAL_TOPIC\x01T\x02"
    _, batch = plain_way(SendPath(), batch_request((b"x", text), (b"y", b"REAL_TOPIC\x01T\x02")))
    assert {"K", "TIMER_DELAY_MS"} <= batch.properties(0).keys()
    assert batch.properties(0).keys().isdisjoint({"DUEMQ_DUE_MS", "REAL_TOPIC"})
    assert batch.properties(1)["REAL_TOPIC"] == "T"


def test_batch_properties_that_are_not_utf8_are_stored_with_replacements() -> None:
    """Put, queue rebuild and `store verify` compute equal tags codes only for valid UTF-8."""
    _, batch = plain_way(SendPath(), batch_request((b"x", b"TAGS\x01Tag\x80\x02"), properties=""))
    assert batch.properties(0)["TAGS"] == "Tag\ufffd"
    assert batch.property_text(0).startswith("TAGS\x01Tag\ufffd\x02".encode())


@pytest.mark.finding("A9")
@pytest.mark.parametrize(("entries", "allowed"), [(1, True), (3, True), (4, False), (4_000, False)])
def test_the_expanded_size_of_a_batch_is_bounded(entries: int, allowed: bool) -> None:
    """The properties of the batch count for each message; the limit here is 20,000 bytes."""
    front = SendPath()
    request = batch_request(*[(b"b", b"")] * entries, properties="X\x01" + "x" * 6_000 + "\x02")
    if allowed:
        assert plain_way(front, request)[0].count == entries
    else:
        error = refused(front, request)
        assert (error.code, "maxMessageSize" in error.remark) == (13, True)


GOOD = batch_body((b"one", b"K\x01k\x02"), (b"two", b""))


def test_a_truncated_batch_is_refused() -> None:
    front, end_of_the_first = SendPath(), 29
    for cut in range(1, len(GOOD)):
        if cut != end_of_the_first:
            error = refused(front, replace(batch_request(), body=GOOD[:cut]))
            assert (cut, error.code) == (cut, 13)
            assert "at byte" in error.remark


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_a_damaged_batch_is_refused_or_decoded(byte: int) -> None:
    front = SendPath()
    for index in range(len(GOOD)):
        request = replace(batch_request(), body=GOOD[:index] + bytes([byte]) + GOOD[index + 1 :])
        batch = PutBatch(8)
        code = 0
        try:
            front.sender.fill(request, BORN, batch)
        except RequestError as error:
            code = error.code
        assert code in (0, 13), index
        assert sum(len(batch.body(n)) for n in range(batch.count)) < len(GOOD), index
