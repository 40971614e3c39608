"""History request (9002) to a running broker: messages by each kind of name, states, events."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq.client.decisions import PendingDecisions
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from message_store.log.offset_id import decode_offset_id, encode_offset_id
from message_store.log.record import decode_record
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import BrokerClient, connected, running, small

HOUR_MS = 3_600_000
pytestmark = pytest.mark.finding("B5")


async def found(client: BrokerClient, name: str, topic: str = "") -> list[dict[str, Any]]:
    """Return the messages of a name."""
    response = await client.call(
        RequestCode.FIND_MESSAGE, body=json.dumps({"name": name, "topic": topic}).encode()
    )
    assert response.code == 0, response.remark
    return json.loads(bytes(response.body))["messages"]


async def shown(client: BrokerClient, name: str) -> tuple[str, int | None, int | None, list[str]]:
    """Return (state, due_ms, delivered_ms, events) of the one message of a name."""
    [one] = await found(client, name)
    events = [record["event"] for record in one["records"]]
    return one["state"], one["due_ms"], one["delivered_ms"], events


def test_messages_of_levels_and_times_in_every_state(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, client):
            start_ms, ids = clock.now_ms(), {}
            due_ms = start_ms + HOUR_MS + 920
            for name, more in (
                ("plain", {}),
                ("level", {"DELAY": "5"}),
                ("unlevel", {"DELAY": "6"}),
                ("timer", {"TIMER_DELIVER_MS": str(due_ms)}),
                ("untimer", {"TIMER_DELIVER_MS": str(due_ms)}),
                ("moved", {"TIMER_DELIVER_MS": str(due_ms)}),
                ("fired", {"TIMER_DELIVER_MS": str(due_ms)}),
            ):
                response = await client.send("T", name.encode(), UNIQ_KEY=name, KEYS="all", **more)
                ids[name] = response.fields["msgId"]
            async with PendingDecisions(broker=broker.address) as deciding:
                await deciding.cancel(ids=["unlevel", "untimer"])
                await deciding.move(ids=["moved"], deliver_ms=due_ms + 7)
                await deciding.fire(ids=["fired"])
            expected = {
                "plain": ("stored", None, None, ["stored"]),
                "level": ("pending", start_ms + 60_000, None, ["scheduled"]),
                "unlevel": ("cancelled", start_ms + 120_000, None, ["scheduled", "cancelled"]),
                "timer": ("pending", due_ms, None, ["scheduled"]),
                "untimer": ("cancelled", due_ms, None, ["scheduled", "cancelled"]),
                "moved": ("pending", due_ms + 7, None, ["scheduled", "moved"]),
                "fired": ("delivered", due_ms, start_ms, ["scheduled", "fired"]),
            }
            for name, state in expected.items():
                assert await shown(client, name) == state
                assert await shown(client, ids[name]) == state
            assert len(await found(client, "all")) == len(expected)
            assert len(await found(client, "all", "T")) == len(expected)
            assert await found(client, "all", "U") == []
            clock.advance(2 * HOUR_MS)
            for name, events in (
                ("level", ["scheduled", "delivered"]),
                ("timer", ["scheduled", "delivered"]),
                ("moved", ["scheduled", "moved", "delivered"]),
            ):
                await client.pull("T", 2)
                state, promised_ms, delivered_ms, had = await shown(client, name)  # type: ignore[assignment]
                assert (state, promised_ms, had) == ("delivered", expected[name][1], events)  # type: ignore[comparison-overlap]
                assert delivered_ms == clock.now_ms()

    asyncio.run(work())


@pytest.mark.finding("B8")
def test_the_due_time_of_a_delivered_message_is_exact(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            due_ms = clock.now_ms() // 1_000 * 1_000 + 5_920
            await client.send("T", b"x", UNIQ_KEY="U", TIMER_DELIVER_MS=str(due_ms))
            clock.advance(10_000)
            await client.pull("T", 0)
            [one] = await found(client, "U")
            assert one["due_ms"] == due_ms
            assert one["properties"]["TIMER_OUT_MS"] == str(due_ms - 920)

    asyncio.run(work())


def test_a_message_without_a_key_is_found_by_its_offset_id(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        config = small(tmp_path, messageIndexEnable="false")
        async with running(config, clock=clock) as (_, client):
            response = await client.send("T", b"x", DELAY="1")
            assert (await shown(client, response.fields["msgId"]))[0] == "pending"
            clock.advance(1_000)
            await client.pull("T", 0)
            _, due_ms, delivered_ms, events = await shown(client, response.fields["msgId"])
            assert due_ms == delivered_ms == clock.now_ms()
            assert events == ["scheduled", "delivered"]
            refused = await client.call(RequestCode.FIND_MESSAGE, body=b'{"name":"U"}')
            assert (refused.code, "messageIndexEnable" in refused.remark) == (1, True)

    asyncio.run(work())


def test_an_offset_id_must_equal_that_of_its_record(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (_, client):
            inside = await client.send("T", b"first", UNIQ_KEY="first")
            record = bytes(await found_record(client, inside.fields["msgId"]))
            outside = await client.send("T", record, UNIQ_KEY="outside")
            _, _, at = decode_offset_id(outside.fields["msgId"])
            own = bytes.fromhex(outside.fields["msgId"])
            port = int.from_bytes(own[4:8], "big")
            assert [one["state"] for one in await found(client, own.hex())] == ["stored"]
            for name in (
                encode_offset_id(b"\x0a\0\0\1", port, at),  # another broker's
                *(encode_offset_id(own[:4], port, at + step) for step in range(84, 100)),
                "F" * 32,
                "F" * 56,
                "x" * 32,
                "é",
                "k" * 1_024,
            ):
                assert await found(client, name) == []

    asyncio.run(work())


async def found_record(client: BrokerClient, offset_id: str) -> bytes:
    response = await client.call(33, {"offset": decode_offset_id(offset_id)[2]})
    return response.body  # type: ignore[return-value]


def test_the_history_of_a_half_message_contains_no_body(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (_, client):
            sent = {
                name: await client.send(
                    "T", b"secret", UNIQ_KEY=name, TRAN_MSG="true", PGROUP="p", OWN="secret"
                )
                for name in ("open", "committed", "rolled")
            }
            for name, response in sent.items():
                flag = {"committed": 8, "rolled": 12}.get(name)
                if flag is not None:
                    fields = {
                        "producerGroup": "p",
                        "tranStateTableOffset": response.fields["queueOffset"],
                        "commitLogOffset": decode_offset_id(response.fields["msgId"])[2],
                        "commitOrRollback": flag,
                        "fromTransactionCheck": "false",
                        "msgId": name,
                    }
                    await client.call(37, fields)
            for name, state, body in (
                ("open", "half message", b""),
                ("committed", "stored", b"secret"),
                ("rolled", "rolled back", b""),
            ):
                [one] = await found(client, name)
                assert (one["state"], one["topic"], b64decode(one["body"])) == (state, "T", body)
                assert ("OWN" in one["properties"]) == bool(body)
            assert (await shown(client, "committed"))[3] == ["half message", "committed"]

    asyncio.run(work())


def test_a_quarantined_message_names_the_reason(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            await client.send("T", b"x", UNIQ_KEY="U", DELAY="1")
            deleted = await client.call(215, {"topic": "T"})
            assert deleted.code == 0, deleted.remark
            clock.advance(1_000)
            await client.pull("DUEMQ_QUARANTINE", 0)
            [one] = await found(client, "U")
            assert (one["state"], one["topic"]) == ("quarantined", "T")
            assert one["reason"].startswith("topic_missing")
            assert [record["event"] for record in one["records"]] == ["scheduled", "quarantined"]

    asyncio.run(work())


@pytest.mark.finding("3S7")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "JSON"),
        (b'{"name":""}', "at least 1"),
        (b'{"name":"a","more":1}', "unknown field"),
        (b'{"name":"' + b"k" * 1_025 + b'"}', "at most 1024"),
        (b"[" * 100_000, "JSON"),
        (b'{"name":"\xff"}', "JSON"),
    ],
)
def test_a_malformed_request_is_refused_with_the_reason(
    tmp_path: Path, body: bytes, why: str
) -> None:
    async def work() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (_, client):
            response = await client.call(RequestCode.FIND_MESSAGE, body=body)
            assert (response.code, why in response.remark) == (13, True), response.remark

    asyncio.run(work())


def test_retries_and_dead_letters_are_part_of_a_history(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            sent = await client.send("T", b"body", UNIQ_KEY="retried")

            async def send_back(offset: int, level: int) -> None:
                fields = {"offset": offset, "group": "G", "delayLevel": level}
                response = await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
                assert response.code == 0, response.remark

            await send_back(decode_offset_id(sent.fields["msgId"])[2], 3)
            due_ms = clock.now_ms() + 10_000
            assert (await shown(client, "retried"))[::3] == ("pending", ["stored", "scheduled"])
            clock.advance(10_000)
            retry = decode_record(memoryview((await client.pull("%RETRY%G", 0)).body), 0)
            events = ["stored", "scheduled", "retry"]
            assert await shown(client, "retried") == ("delivered", due_ms, due_ms, events)
            await send_back(retry.phys_offset, -1)
            events.append("dead letter")
            assert await shown(client, "retried") == ("dead letter", due_ms, None, events)
            [one] = await found(client, "retried")
            assert one["reason"] == "group G, after 2 deliveries"

    asyncio.run(work())


def test_a_message_that_became_a_dead_letter_at_once_has_it_in_its_history(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(small(tmp_path)) as (_, client):
            sent = await client.send("T", b"body", UNIQ_KEY="dead")
            offset = decode_offset_id(sent.fields["msgId"])[2]
            fields = {"offset": offset, "group": "G", "delayLevel": -1}
            await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            expected = ("dead letter", None, None, ["stored", "dead letter"])
            assert await shown(client, "dead") == expected
            assert await shown(client, sent.fields["msgId"]) == expected

    asyncio.run(work())


def test_a_pop_retry_is_part_of_a_history(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, client):
            await client.send("T", b"body", UNIQ_KEY="popped")
            await PopClient(client, clock, "G").pop("T", invisibleTime=10_000)
            await advance(broker, clock, 15_000)
            state, _, _, events = await shown(client, "popped")
            assert (state, events) == ("delivered", ["stored", "retry"])
            [one] = await found(client, "popped")
            assert one["reason"] == "group G, after 1 deliveries"

    asyncio.run(work())


async def popped_by(client: BrokerClient, name: str) -> list[tuple[str, int, int]]:
    """Return (group, end of the invisible time, attempt) of the open pops of a message."""
    [one] = await found(client, name)
    return [(pop["group"], pop["invisible_until_ms"], pop["attempt"]) for pop in one["pops"]]


def test_an_open_pop_names_its_group_time_and_attempt(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            for name in ("a", "b", "c"):
                await client.send("T", name.encode(), UNIQ_KEY=name)
            assert await popped_by(client, "b") == []
            start_ms = clock.now_ms()
            first, second = PopClient(client, clock, "G"), PopClient(client, clock, "H")
            a, b, c = await first.pop("T", invisibleTime=10_000)
            clock.advance(1)
            assert await popped_by(client, "b") == [("G", start_ms + 10_000, 1)]
            assert len(await second.pop("T", invisibleTime=60_000)) == 3
            assert await popped_by(client, "b") == [
                ("G", start_ms + 10_000, 1),
                ("H", start_ms + 60_001, 1),
            ]
            await first.ack(a)
            assert await popped_by(client, "a") == [("H", start_ms + 60_001, 1)]
            clock.advance(1_000)
            await first.change(b, 30_000)
            assert await popped_by(client, "b") == [
                ("H", start_ms + 60_001, 1),
                ("G", start_ms + 31_001, 1),
            ]
            assert (c.body, await popped_by(client, "c")) == (
                b"c",
                [("G", start_ms + 10_000, 1), ("H", start_ms + 60_001, 1)],
            )

    asyncio.run(work())


def test_acknowledgements_of_one_turn_end_pops(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            for name in ("a", "b", "c"):
                await client.send("T", name.encode(), UNIQ_KEY=name)
            group = PopClient(client, clock, "G")
            messages = await group.pop("T", invisibleTime=10_000)
            await asyncio.gather(*(group.ack(message) for message in messages[:2]))
            assert [len(await popped_by(client, name)) for name in "abc"] == [0, 0, 1]

    asyncio.run(work())


def test_a_pop_of_a_retry_is_a_second_attempt(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, client):
            await client.send("T", b"body", UNIQ_KEY="popped")
            group = PopClient(client, clock, "G")
            await group.pop("T", invisibleTime=10_000)
            await advance(broker, clock, 15_000)
            assert await popped_by(client, "popped") == []
            assert len(await group.pop("T", invisibleTime=20_000)) == 1
            expected = [("G", clock.now_ms() + 20_000, 2)]
            assert await popped_by(client, "popped") == expected

    asyncio.run(work())


def test_an_orderly_pop_is_open_until_it_is_acknowledged(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            await client.send("T", b"body", UNIQ_KEY="ordered")
            group = PopClient(client, clock, "G")
            [message] = await group.pop("T", invisibleTime=10_000, order=True, queueId=0)
            assert await popped_by(client, "ordered") == [("G", clock.now_ms() + 10_000, 1)]
            await group.ack(message)
            assert await popped_by(client, "ordered") == []

    asyncio.run(work())


def test_a_message_that_looks_like_a_checkpoint_is_none(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            await client.send("T", b"body", UNIQ_KEY="popped")
            await client.send("U", b"body", UNIQ_KEY="other")
            await PopClient(client, clock, "G").pop("U", invisibleTime=10_000)
            body = (
                '{"bm":0,"bn":"test","c":"X","d":[0],"it":60000,"n":1,'
                f'"pt":{clock.now_ms()},"q":0,"ro":0,"so":0,"t":"T"}}'
            )
            key = f"T@0@0@X@{clock.now_ms()}@test@ck"
            due = str(clock.now_ms() + 59_000)
            sent = await client.send(
                "V", body.encode(), UNIQ_KEY=key, TAGS="ck", TIMER_DELIVER_MS=due
            )
            assert sent.code == 0
            assert await popped_by(client, "popped") == []
            assert [group for group, _, _ in await popped_by(client, "other")] == ["G"]

    asyncio.run(work())


def test_an_occurrence_names_its_schedule_and_planned_time(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (_, client):
            request = {"DUEMQ_SCHEDULE_NAME": "hourly", "DUEMQ_SCHEDULE_EVERY_MS": str(HOUR_MS)}
            await client.send("T", b"x", UNIQ_KEY="request", **request)
            planned_ms = clock.now_ms() // HOUR_MS * HOUR_MS + HOUR_MS
            async with asyncio.timeout(30):
                while not (messages := await found(client, f"hourly@{planned_ms}")):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            times = messages[0]["planned_ms"], messages[0]["next_ms"]
            assert (messages[0]["state"], messages[0]["schedule"]) == ("pending", "hourly")
            assert times == (planned_ms, planned_ms + HOUR_MS)
            clock.set_ms(planned_ms)
            await client.pull("T", 0)
            [one] = await found(client, f"hourly@{planned_ms}")
            assert (one["state"], one["schedule"]) == ("delivered", "hourly")
            assert one["delivered_ms"] == planned_ms

    asyncio.run(work())


def test_an_account_finds_messages_of_its_topic_only(tmp_path: Path) -> None:
    ann, code = Credentials("ann", "ann-secret"), RequestCode.FIND_MESSAGE_OF_TOPIC

    async def work() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):
            await prepare_all(broker.address, ROOT, user_steps(ann, {"Topic:T": ["Sub"]}))
            async with (
                connected(broker.address, ROOT) as root,
                connected(broker.address, ann) as client,
            ):
                offset_ids = {}
                for topic in ("T", "U"):
                    response = await root.send(topic, b"x", UNIQ_KEY=topic, KEYS="k", DELAY="18")
                    offset_ids[topic] = response.fields["msgId"]

                async def unique_keys(name: str) -> list[str]:
                    body = json.dumps({"name": name}).encode()
                    response = await client.call(code, {"topic": "T"}, body)
                    assert response.code == 0, response.remark
                    messages = json.loads(bytes(response.body))["messages"]
                    return [message["unique_key"] for message in messages]

                for name in ("T", "k", offset_ids["T"]):
                    assert await unique_keys(name) == ["T"]
                for name in ("U", offset_ids["U"]):
                    assert await unique_keys(name) == []

                async def refused(header: dict[str, str], **body: str) -> int:
                    content = json.dumps({"name": "k", **body}).encode()
                    return int((await client.call(code, header, content)).code)

                assert await refused({"topic": "U"}) == ResponseCode.NO_PERMISSION
                assert await refused({"topic": "SCHEDULE_TOPIC_XXXX"}) == ResponseCode.NO_PERMISSION
                assert await refused({"topic": "T"}, topic="U") == ResponseCode.MESSAGE_ILLEGAL
                for nothing in ({}, {"topic": ""}):
                    assert await refused(nothing) != ResponseCode.SUCCESS
                    assert (await root.call(code, nothing, b'{"name":"k"}')).code != 0
                internal = {"topic": "SCHEDULE_TOPIC_XXXX"}
                assert (await root.call(code, internal, b'{"name":"k"}')).code != 0
                anywhere = await client.call(RequestCode.FIND_MESSAGE, body=b'{"name":"k"}')
                assert anywhere.code == ResponseCode.NO_PERMISSION

    asyncio.run(work())
