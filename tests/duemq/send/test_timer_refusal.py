"""Without timers a message with a time of its own is refused; with them it is held, never early."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.send.timer_refusal import refuse_timers
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.recall_handle import decode_handle
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record
from tests.duemq.hold_timers import LEVELS, TIMERS
from tests.support.running_broker import BrokerClient, running, small
from tests.support.stores import add_message, open_store


@pytest.mark.parametrize(
    ("rule", "properties", "status"),
    [
        ("a plain message passes", {}, 0),
        ("a level passes", {"DELAY": "3"}, 0),
        ("a time is refused", {"TIMER_DELIVER_MS": "1700000000000"}, 1),
        ("a delay in ms is refused", {"TIMER_DELAY_MS": "5"}, 1),
        ("a delay in s is refused", {"TIMER_DELAY_SEC": "5"}, 1),
        ("no number is refused", {"TIMER_DELAY_SEC": "soon"}, 1),
        ("what was a timer before passes", {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "17"}, 0),
    ],
)
def test_refusal(tmp_path: Path, rule: str, properties: dict[str, str], status: int) -> None:
    with open_store(tmp_path) as store:
        batch = PutBatch()
        add_message(store, batch, "T", properties=properties)
        refuse_timers(batch, 0)
        assert int(batch.rows[0]["status"]) == status, rule
        assert ("timerWheelEnable" in batch.remarks.get(0, "")) == bool(status)


# A broker that holds timers.


def held(broker: Broker) -> list[Record]:
    """Return the records of the timer topic."""
    store = broker.store
    first, end = store.queue_bounds(TIMER_TOPIC, 0)
    units = [store.units(TIMER_TOPIC, 0, at, 1)[0] for at in range(first, end)]
    return [store.read_record(int(unit["phys_offset"])) for unit in units]


def visible(broker: Broker, topic: str = "T") -> int:
    return broker.store.queue_bounds(topic, 0)[1]


def with_timers(tmp_path: Path, work: Any, **properties: str) -> None:
    async def main() -> None:
        settings = small(tmp_path, messageDelayLevel="1s 5s", **properties)
        plugins, clock = [LEVELS, TIMERS], FakeClock()
        async with running(settings, clock=clock, plugins=plugins) as (broker, client):
            await client.send("T", b"first")
            await work(broker, client, clock)

    asyncio.run(main())


def test_a_timer_is_stored_in_its_topic_and_its_producer_gets_a_handle(tmp_path: Path) -> None:
    async def work(broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        response = await client.send("T", b"later", UNIQ_KEY="U", TIMER_DELAY_MS="12345")
        (record,) = held(broker)
        out_ms = (clock.now_ms() + 12_344) // 1_000 * 1_000
        assert (record.body, record.properties["TIMER_OUT_MS"]) == (b"later", str(out_ms))
        assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "0")
        handle = decode_handle((response.fields or {})["recallHandle"])
        assert (handle.topic, handle.broker_name) == ("T", "test")
        assert (handle.time_text, handle.unique_id) == (str(out_ms + 1), "U")
        assert visible(broker) == 1

    with_timers(tmp_path, work)


def test_the_level_wins_over_a_time(tmp_path: Path) -> None:
    """Apache 5.3.3 takes the times out of the text, too."""

    async def work(broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        response = await client.send("T", b"x", UNIQ_KEY="U", DELAY="2", TIMER_DELAY_SEC="1")
        assert held(broker) == []
        assert "recallHandle" not in (response.fields or {})
        unit = broker.store.units("SCHEDULE_TOPIC_XXXX", 1, 0, 1)[0]
        record = broker.store.read_record(int(unit["phys_offset"]))
        assert "TIMER_DELAY_SEC" not in record.properties
        assert visible(broker) == 1

    with_timers(tmp_path, work)


def batch_request(texts: list[dict[str, str]]) -> tuple[dict[str, Any], bytes]:
    body = b""
    for number, text in enumerate(texts):
        content, properties = b"body-%d" % number, encode_properties(text)
        body += struct.pack("!iiiii", 22 + len(content) + len(properties), 0, 0, 0, len(content))
        body += content + struct.pack("!h", len(properties)) + properties
    values = ("p", "T", "TBW102", 1, 0, 0, 1, 0, "WAIT\x01true\x02", 0, "false", 0, "true")
    return dict(zip("abcdefghijklm", values, strict=True)), body


def test_t23_messages_of_a_batch_are_delayed_one_by_one(tmp_path: Path) -> None:
    async def work(broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        times = [{"TIMER_DELAY_SEC": "9"}, {}, {"TIMER_DELIVER_MS": str(clock.now_ms() + 5_000)}]
        fields, body = batch_request(times)
        response = await client.call(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        assert response.code == 0
        assert "recallHandle" not in (response.fields or {})
        assert [record.body for record in held(broker)] == [b"body-0", b"body-2"]
        assert visible(broker) == 2

    with_timers(tmp_path, work)


def test_a_batch_with_a_timer_that_cannot_be_scheduled_is_refused_whole(tmp_path: Path) -> None:
    async def work(broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        fields, body = batch_request([{"TIMER_DELAY_SEC": "9"}, {"TIMER_DELAY_SEC": "259201"}, {}])
        response = await client.call(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        assert response.code == 13
        assert "max delay 259200000ms" in (response.remark or "")
        assert (held(broker), visible(broker)) == ([], 1)

    with_timers(tmp_path, work)


@pytest.mark.parametrize("verdict", [8, 12])
def test_t23_the_time_of_a_half_message_counts_from_its_commit(
    tmp_path: Path, verdict: int
) -> None:
    async def work(broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        reported = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "U", "TIMER_DELAY_SEC": "9"}
        sent = await client.send("T", b"half", **reported)
        assert held(broker) == []
        clock.advance(60_000)
        half = {
            "producerGroup": "p",
            "tranStateTableOffset": (sent.fields or {})["queueOffset"],
            "commitLogOffset": int((sent.fields or {})["msgId"][16:], 16),
            "commitOrRollback": verdict,
            "msgId": "U",
        }
        assert (await client.call(RequestCode.END_TRANSACTION, half)).code == 0
        assert visible(broker) == 1
        wanted = str((clock.now_ms() + 8_999) // 1_000 * 1_000)
        found = [record.properties["TIMER_OUT_MS"] for record in held(broker)]
        assert found == ([wanted] if verdict == 8 else [])
        if found:
            record = held(broker)[0]
            assert record.property_text.count(b"REAL_TOPIC") == 1
            assert (record.sys_flag & 12, record.properties["REAL_QID"]) == (8, "0")

    with_timers(tmp_path, work)


def test_a_recall_is_refused_where_no_component_owns_timers(tmp_path: Path) -> None:
    async def work(broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        sent = await client.send("T", b"later", UNIQ_KEY="U", TIMER_DELAY_SEC="9")
        handle = (sent.fields or {})["recallHandle"]
        response = await client.call(370, {"topic": "T", "recallHandle": handle})
        assert (response.code, "timerWheelEnable" in (response.remark or "")) == (1, True)
        assert len(held(broker)) == 1

    with_timers(tmp_path, work, recallMessageEnable="true")
