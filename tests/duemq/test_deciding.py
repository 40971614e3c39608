"""Cancel, move and fire through a running broker: the client, every way to name a message, 370."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from delayed_delivery.pending import Found
from delayed_delivery.steps import at_once
from duemq.broker.broker import Broker
from duemq.client.decisions import MessageSelection, PendingDecisions
from duemq.messages.decide import DecideProcessor
from duemq.messages.decision_results import CANCELLED_BEFORE
from duemq.messages.recall import RecallProcessor
from duemq.net.client import RemotingClient
from duemq.net.decisions import NAMES_MAX, DecisionResult
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Request, Response
from message_store.log.offset_id import encode_offset_id
from tests.support.running_broker import BrokerClient, bodies_of, connected, running, small
from timer_store.pending.lookup import PendingTimers

HOUR_MS = 3_600_000


def reported(results: list[DecisionResult]) -> list[tuple[str, int]]:
    return [(result.verdict, result.messages) for result in results]


async def broker_with_pending(
    remote: BrokerClient, clock: FakeClock, count: int = 6, topic: str = "T"
) -> list[str]:
    """Send timers of one hour with keys; return their offset message ids."""
    ids = []
    for n in range(count):
        response = await remote.send(
            topic,
            b"%d" % n,
            UNIQ_KEY=f"U{n}",
            KEYS=f"k{n % 2} all",
            TIMER_DELIVER_MS=str(clock.now_ms() + HOUR_MS + n),
        )
        assert response.code == 0, response.remark
        ids.append(response.fields["msgId"])
    return ids


def test_every_way_to_name_a_message(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, remote):
            ids = await broker_with_pending(remote, clock)
            async with PendingDecisions(broker=broker.address) as waiting:
                dry = await waiting.cancel(ids=["U0"], dry_run=True)
                assert reported(dry) == [("done", 1)]
                assert dry[0].due_ms == clock.now_ms() + HOUR_MS
                assert reported(await waiting.cancel(ids=["U0"])) == [("done", 1)]
                again = await waiting.cancel(ids=["U0", ids[0], "absent"])
                assert reported(again) == [("done", 0), ("done", 0), ("unknown", 0)]
                assert reported(await waiting.fire(ids=["U0"])) == [("unknown", 0)]
                assert reported(await waiting.fire(ids=[ids[1]])) == [("done", 1)]
                assert reported(await waiting.cancel(ids=["U1"])) == [("already delivered", 0)]
                assert reported(await waiting.move(keys=["k1"], delay_ms=10)) == [("done", 2)]
                assert reported(await waiting.cancel(keys=["k0"], topic="other")) == [
                    ("unknown", 0)
                ]
                handle = RecallHandle("T", "test", "1", "U2").encode()
                forged = RecallHandle("T", "else", "1", "U2").encode()
                results = await waiting.cancel(handles=[handle, forged, handle[:9]])
                assert reported(results) == [("done", 1), ("unknown", 0), ("refused", 0)]
                rest = await waiting.cancel(topic="T", from_ms=clock.now_ms() + HOUR_MS)
                assert reported(rest) == [("done", 1)]
                clock.advance(10)
                await remote.pull("T", 2)  # the last one of them
                assert reported(await waiting.cancel(ids=["U3", "U5"])) == [
                    ("already delivered", 0),
                    ("already delivered", 0),
                ]

    asyncio.run(work())


def test_messages_of_levels_too(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, remote):
            for n in range(4):
                await remote.send("T", b"%d" % n, UNIQ_KEY=f"U{n}", KEYS="k", DELAY="5")
            await broker_with_pending(remote, clock, 1, "U")
            async with PendingDecisions(broker=broker.address) as waiting:
                assert reported(await waiting.cancel(ids=["U1"], topic="T")) == [("done", 1)]
                assert reported(await waiting.cancel(ids=["U1"], topic="T")) == [("done", 0)]
                assert reported(await waiting.fire(ids=["U2"])) == [("done", 1)]
                moved = await waiting.move(ids=["U3"], delay_ms=2_500)
                assert reported(moved) == [("done", 1)]
                assert moved[0].due_ms == clock.now_ms() + 2_500
                assert moved[0].former_due_ms > moved[0].due_ms
                both = await waiting.cancel(ids=["U0"], dry_run=True)
                assert reported(both) == [("done", 2)]  # the timer and the level message
                assert reported(await waiting.move(ids=["U3"], delay_ms=5_000)) == [("done", 1)]
                clock.advance(5_000)
                found = await remote.pull("T", 1)
                assert (found.code, bodies_of(found)) == (0, [b"3"])
                assert reported(await waiting.cancel(topic="T")) == [("done", 1)]
            clock.advance(HOUR_MS)
        async with running(small(tmp_path), clock=clock) as (broker, remote):
            first, end = broker.store.queue_bounds("T", 0)
            units = broker.store.units("T", 0, first, end)
            bodies = [broker.store.read_record(int(u["phys_offset"])).body for u in units]
            assert bodies == [b"2", b"3"]

    asyncio.run(work())


def test_a_request_that_cannot_be_understood_is_refused_with_why(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(small(tmp_path), clock=FakeClock()) as (_, remote):
            for code, body, why in (
                (RequestCode.CANCEL_PENDING, b"{", "JSON"),
                (RequestCode.CANCEL_PENDING, b"{}", "no messages selected"),
                (RequestCode.FIRE_PENDING, b'{"id":["a"]}', "unknown field"),
                (RequestCode.MOVE_PENDING, b'{"ids":["a"]}', "deliver_ms or delay_ms"),
                (RequestCode.MOVE_PENDING, b'{"ids":["a"],"deliver_ms":-1}', "not a time"),
                (
                    RequestCode.CANCEL_PENDING,
                    msgspec.json.encode({"ids": ["a"] * (NAMES_MAX + 1)}),
                    "the maximum is",
                ),
            ):
                response = await remote.call(code, body=body)
                assert (response.code, why in response.remark) == (13, True), response.remark

    asyncio.run(work())


def test_recall_decides_and_reports_it(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        config = small(tmp_path, recallMessageEnable="true", flushDiskType="SYNC_FLUSH")
        async with running(config, clock=clock) as (_, remote):
            response = await remote.send(
                "T", b"a", UNIQ_KEY="U", TIMER_DELIVER_MS=str(clock.now_ms() + 5_000)
            )
            handle = {"topic": "T", "recallHandle": response.fields["recallHandle"]}
            for _ in range(2):
                response = await remote.call(370, handle)
                assert (response.code, response.fields["msgId"]) == (0, "U")
            unknown = RecallHandle("T", "test", str(clock.now_ms() + 4_001), "absent").encode()
            response = await remote.call(370, {"topic": "T", "recallHandle": unknown})
            assert (response.code, "no such message" in response.remark) == (604, True)

    asyncio.run(work())


def test_requests_are_cut_to_what_a_broker_takes() -> None:
    named = MessageSelection(ids=["a"] * (NAMES_MAX + 1), keys=["b"], topic="T")
    first, second = named.requests()
    assert (len(first.ids), len(second.ids), first.keys, second.keys) == (NAMES_MAX, 1, [], ["b"])
    [alone] = MessageSelection(topic="T").requests()
    assert alone.topic == "T"


@pytest.mark.parametrize("name", [encode_offset_id(b"\x7f\0\0\1", 1, 1 << 40), "0" * 32, "x" * 32])
def test_an_id_of_no_message_is_unknown(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with (
            running(small(tmp_path), clock=FakeClock()) as (broker, _),
            PendingDecisions(broker=broker.address) as waiting,
        ):
            assert reported(await waiting.cancel(ids=[name])) == [("unknown", 0)]

    asyncio.run(work())


@pytest.mark.sampled
@pytest.mark.finding("3D14")
@pytest.mark.parametrize("kind", ["keys", "handles", "recall"])
def test_cancels_that_wait_together_share_a_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """500 cancels, one request each, take as many steps as a few requests.

    The first lookup waits until all requests have arrived, however fast the sockets are.
    """
    lookups: list[int] = []
    arrivals, all_arrived = itertools.count(1), asyncio.Event()
    by_key = PendingTimers.by_key
    owner: Any = RecallProcessor if kind == "recall" else DecideProcessor
    method = "recall" if kind == "recall" else "decide"
    process = getattr(owner, method)

    async def counted(self: PendingTimers, topic: Any, keys: list[str], *, unique: bool) -> Found:
        lookups.append(len(keys))
        await all_arrived.wait()
        return await by_key(self, topic, keys, unique=unique)

    async def arriving(self: Any, request: Request) -> Response:
        if next(arrivals) == 501:
            all_arrived.set()
        response: Response = await process(self, request)
        return response

    monkeypatch.setattr(PendingTimers, "by_key", counted)
    monkeypatch.setattr(owner, method, arriving)

    def call(number: int, key: str, handle: str) -> tuple[int, dict[str, str], bytes]:
        topic = f"T{number % 3}"
        if kind == "recall":
            return RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle}, b""
        body = {"topic": topic, "keys": [key]} if kind == "keys" else {"handles": [handle]}
        return RequestCode.CANCEL_PENDING, {}, msgspec.json.encode(body)

    async def work() -> None:
        clock = FakeClock()
        config = small(tmp_path, recallMessageEnable="true")
        async with running(config, clock=clock) as (broker, remote):
            due_ms = str(clock.now_ms() + HOUR_MS)
            sends = [
                remote.send(
                    f"T{n % 3}", b"x", UNIQ_KEY=f"U{n}", KEYS=f"k{n} m{n}", TIMER_DELIVER_MS=due_ms
                )
                for n in range(500)
            ]
            handles = [sent.fields["recallHandle"] for sent in await asyncio.gather(*sends)]
            async with RemotingClient(broker.address) as one, connected(broker.address) as other:
                connection = await one.connect()
                requests = [Request(*call(n, f"k{n}", handles[n])) for n in range(500)]
                work = asyncio.gather(*(connection.call(each, timeout_s=60) for each in requests))
                found = await other.call(*call(499, "m499", handles[499]))
                assert found.code == 0, found.remark
                responses = await work
            assert [each.code for each in responses] == [0] * 500
            if kind != "recall":
                results = [msgspec.json.decode(each.body)["results"][0] for each in responses]
                assert [each["verdict"] for each in results] == ["done"] * 500
                assert sum(each.get("messages", 0) for each in results[:499]) == 499
            assert len(lookups) <= 20

    asyncio.run(work())


def test_one_message_under_two_keys_is_cancelled_once(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, remote):
            due_ms = str(clock.now_ms() + HOUR_MS)
            await remote.send("T", b"x", UNIQ_KEY="U", KEYS="a b c", TIMER_DELIVER_MS=due_ms)
            async with PendingDecisions(broker=broker.address) as waiting:
                keys = ("a", "b", "c", "a")
                found = await asyncio.gather(*(waiting.cancel(keys=[key]) for key in keys))
                reported_all = [
                    (each[0].verdict, each[0].messages, each[0].remark) for each in found
                ]
                again = ("done", 0, CANCELLED_BEFORE)
                assert sorted(reported_all) == [again, again, again, ("done", 1, "")]

    asyncio.run(work())


def test_a_dry_run_of_a_move_reports_a_due_time_beyond_the_max_delay(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        keys = small(tmp_path) | {"timerMaxDelaySec": "7200"}
        async with running(keys, clock=clock) as (broker, remote):
            await broker_with_pending(remote, clock, 1)
            await remote.send("T", b"level", UNIQ_KEY="L", DELAY="5")
            async with PendingDecisions(broker=broker.address) as decisions:
                for delay_ms, verdict in ((2 * HOUR_MS, "done"), (2 * HOUR_MS + 1, "refused")):
                    dry = await decisions.move(ids=["U0", "L"], delay_ms=delay_ms, dry_run=True)
                    moved = await decisions.move(ids=["U0", "L"], delay_ms=delay_ms)
                    for results in (dry, moved):
                        assert [result.verdict for result in results] == [verdict, verdict]
                        for result in results:
                            assert (verdict == "refused") == ("the max delay 7200" in result.remark)

    asyncio.run(work())


def test_a_dry_run_of_a_move_appends_and_counts_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        keys = small(tmp_path) | {"timerTopicQuota": "1"}
        async with running(keys, clock=clock) as (broker, remote):
            await broker_with_pending(remote, clock, 1)
            levels: Any = broker.plugins.plugins["schedule_service"]
            levels.tables.needs_record = True  # as after a full disk
            before = state(broker)
            async with PendingDecisions(broker=broker.address) as decisions:
                for _ in range(3):
                    dry = await decisions.move(ids=["U0"], delay_ms=2 * HOUR_MS, dry_run=True)
                    assert reported(dry) == [("done", 1)]
            assert state(broker) == before

    def state(broker: Broker) -> tuple[int, object]:
        view: Any = broker.plugins.admin_views()["timer_store.summary"]()
        return broker.store.max_offset, at_once(view)

    asyncio.run(work())
