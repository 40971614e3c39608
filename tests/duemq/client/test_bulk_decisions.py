"""Bulk decisions through a running broker: pages of a search, a true result for each hit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from delayed_delivery import pending_search
from delayed_delivery.pending import Verdict
from duemq.client.bulk_decisions import BulkDecisions, HitPage, PendingSearch, without
from duemq.client.decisions import MessageSelection, PendingDecisions
from duemq.messages import decision_turns, pending_hits
from duemq.messages.decision_turns import SLICE_HITS_FIRST, SLICE_HITS_MIN, SliceSize
from duemq.net.decisions import PAGE_HITS_MAX, HitDecision, HitVerdicts, PendingHits
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from message_store.index import key_search
from message_store.store import MessageStore
from tests.support.running_broker import BrokerClient, running, small
from timer_store.pending.lookup import PendingTimers

HOUR_MS = 3_600_000
COUNT = 10
DONE, CANCELLED, DELIVERED, UNKNOWN, REFUSED = Verdict


class Rig:
    """A broker with timers U0, U1, ... and level messages L0, L1, ... of topic T."""

    def __init__(self, broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        self.broker, self.remote, self.clock = broker, remote, clock
        self.decisions = PendingDecisions(broker=broker.address)
        self.bulk = BulkDecisions(self.decisions.client)

    async def fill(self) -> None:
        for number in range(COUNT):
            due = str(self.clock.now_ms() + HOUR_MS + number)
            await self.remote.send(
                "T", b"timer", UNIQ_KEY=f"U{number}", KEYS="all", TIMER_DELIVER_MS=due
            )
        for number in range(COUNT):
            await self.remote.send("T", b"level", UNIQ_KEY=f"L{number}", KEYS="all", DELAY="5")
        await self.remote.send("U", b"other", UNIQ_KEY="other", DELAY="5")

    async def pages(self, **search: Any) -> list[HitPage]:
        return [page async for page, _ in self.bulk.search(PendingSearch(**search)) if page.count]

    async def decide(
        self, page: HitPage, action: str = "cancel", deliver_ms: int | None = None, **search: Any
    ) -> list[int]:
        result = await self.bulk.decide(
            page, action, PendingSearch(**search), deliver_ms=deliver_ms
        )
        return list(result.verdicts)


def with_broker(root: Path, work: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with running(small(root), clock=clock) as (broker, remote):
            rig = Rig(broker, remote, clock)
            await rig.fill()
            async with rig.decisions:
                await work(rig)

    asyncio.run(main())


def keys_of(pages: list[HitPage]) -> list[str]:
    return [key.decode() for page in pages for key in page.hits().keys]


LEVELS = [f"L{number}" for number in range(COUNT)]
TIMERS = [f"U{number}" for number in range(COUNT)]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ({}, [*LEVELS, "other", *TIMERS]),
        ({"topic": "T"}, [*LEVELS, *TIMERS]),
        ({"topic": "U"}, ["other"]),
        ({"topic": "absent"}, []),
        ({"key": "all"}, [*LEVELS, *TIMERS]),
        ({"key": "L3"}, ["L3"]),
        ({"key": "U3", "topic": "U"}, []),
        ({"from_ms": HOUR_MS}, TIMERS),
        ({"topic": "T", "from_ms": HOUR_MS + 2, "until_ms": HOUR_MS + 5}, TIMERS[2:5]),
    ],
)
def test_pages_have_each_hit_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: dict[str, Any], expected: list[str]
) -> None:
    monkeypatch.setattr(pending_hits, "PAGE_HITS_MAX", 3)

    async def work(rig: Rig) -> None:
        now_ms = rig.clock.now_ms()
        times = {name: now_ms + ms for name, ms in search.items() if name.endswith("_ms")}
        pages = await rig.pages(**search | times)
        assert keys_of(pages) == expected
        assert all(page.count <= 3 for page in pages)

    with_broker(tmp_path, work)


def test_results_are_true_beside_another_operator(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        now_ms = rig.clock.now_ms()
        search = {"topic": "T", "until_ms": now_ms + 2 * HOUR_MS}
        levels, timers = await rig.pages(**search)
        await rig.decisions.cancel(ids=["U0", "L0"])
        await rig.decisions.fire(ids=["U1", "L1"])
        await rig.decisions.move(ids=["U2"], deliver_ms=now_ms + HOUR_MS + 60_000)
        await rig.decisions.move(ids=["U3", "L3"], deliver_ms=now_ms + 3 * HOUR_MS)
        expected = [DONE] * COUNT
        expected[:4] = [CANCELLED, DELIVERED, DONE, UNKNOWN]
        assert await rig.decide(timers, **search) == expected
        assert await rig.decide(levels, **search) == expected
        # repeated: nothing is decided twice
        expected = [CANCELLED] * COUNT
        expected[:4] = [CANCELLED, DELIVERED, CANCELLED, UNKNOWN]
        assert await rig.decide(timers, **search) == expected
        assert keys_of(await rig.pages(topic="T")) == ["U3", "L3"]

    with_broker(tmp_path, work)


@pytest.mark.parametrize("action", ["move", "fire"])
def test_a_page_is_moved_or_fired(tmp_path: Path, action: str) -> None:
    async def work(rig: Rig) -> None:
        later_ms = rig.clock.now_ms() + 5 * HOUR_MS if action == "move" else None
        for page in await rig.pages(topic="T"):
            assert await rig.decide(page, action, later_ms, topic="T") == [DONE] * COUNT
        pages = await rig.pages(topic="T")
        times = [due_ms for page in pages for due_ms in page.hits().due_ms]
        assert times == ([later_ms] * 2 * COUNT if action == "move" else [])

    with_broker(tmp_path, work)


def test_the_key_decides_and_not_the_offset(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        [page] = await rig.pages(topic="U")
        offset = page.hits().offsets[0]
        keys = [b"U0", b"absent", b"other", b"U4", b"U4"]
        forged = HitDecision(
            action="cancel", keys=keys, offsets=[offset, offset, offset, 7, 1 << 50]
        )
        response = await decided(rig, forged, {"topic": "T"})
        verdicts = msgspec.msgpack.decode(response.body, type=HitVerdicts).verdicts
        assert list(verdicts) == [DONE, UNKNOWN, UNKNOWN, DONE, DONE]
        left = [*LEVELS, "other", *TIMERS[1:4], *TIMERS[5:]]
        assert keys_of(await rig.pages()) == left

    with_broker(tmp_path, work)


async def decided(rig: Rig, command: Any, fields: dict[str, str] | None = None) -> Response:
    body = msgspec.msgpack.encode(command)
    return await rig.decisions.client.call(
        rig.broker.address, RequestCode.DECIDE_HITS, fields or {}, body
    )


def test_malformed_requests_are_refused(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        many = [b"k"] * (PAGE_HITS_MAX + 1)
        for command in (
            "text",
            ["cancel"],
            HitDecision(action="delete", keys=[b"k"], offsets=[0]),
            HitDecision(action="cancel", keys=[b"k"], offsets=[]),
            HitDecision(action="cancel", keys=[b""], offsets=[0]),
            HitDecision(action="cancel", keys=[b"\xff"], offsets=[0]),
            HitDecision(action="cancel", keys=[b"k"], offsets=[-1]),
            HitDecision(action="cancel", keys=many, offsets=[0] * len(many)),
            HitDecision(action="move", keys=[b"k"], offsets=[0]),
        ):
            assert (await decided(rig, command)).code == ResponseCode.MESSAGE_ILLEGAL, command
        for fields in (
            {"cursor": "x"},
            {"cursor": "9:"},
            {"cursor": "-9:"},
            {"cursor": "1:q0"},
            {"cursor": "1:1_2"},
            {"topic": ""},
        ):
            code = RequestCode.SEARCH_PENDING
            response = await rig.decisions.client.call(rig.broker.address, code, fields)
            assert response.code == ResponseCode.INVALID_PARAMETER, fields
        assert len(keys_of(await rig.pages())) == 2 * COUNT + 1

    with_broker(tmp_path, work)


def test_other_requests_run_between_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MIN", 1)
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MAX", 1)

    async def work(rig: Rig) -> None:
        [page] = await rig.pages(topic="T", from_ms=rig.clock.now_ms() + HOUR_MS)
        running_page = asyncio.create_task(rig.decide(page, topic="T"))
        done = []
        while not running_page.done():
            await rig.remote.send("T", b"now")
            done.append(running_page.done())
        assert done.count(False) > 1
        assert await running_page == [DONE] * COUNT

    with_broker(tmp_path, work)


def test_level_messages_are_decided_without_a_search_for_timers_in_each_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MIN", 1)
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MAX", 1)
    calls, cancel = list[int](), PendingTimers.cancel

    def counted(self: PendingTimers, offsets: Any) -> Any:
        calls.append(offsets.size)
        return cancel(self, offsets)

    async def work(rig: Rig) -> None:
        levels, timers = await rig.pages(topic="T")
        monkeypatch.setattr(PendingTimers, "cancel", counted)
        assert await rig.decide(levels, topic="T") == [DONE] * COUNT
        assert calls == [1]
        assert await rig.decide(timers, topic="T") == [DONE] * COUNT

    with_broker(tmp_path, work)


@pytest.mark.parametrize(
    ("count", "processor_s", "took_s", "size"),
    [
        (128, 0.0, 0.0, 480),
        (128, 0.0001, 0.0004, 480),
        (300, 0.0018, 0.0018, 300),
        (300, 0.0018, 0.0072, 300),  # waits for other threads
        (400, 0.0018, 0.0128, 199),  # reads of the disk
        (400, 0.0021, 0.0021, 329),
        (160, 0.001, 0.001, 373),  # mostly the fixed cost
        (256, 0.006, 0.006, 64),
        (256, 1.0, 1.0, 8),
        (128, 0.0008, 1.0, 64),  # waits do not make it smaller than the least number
        (64, 0.0112, 0.0112, 11),  # moves of level messages
        (11, 0.001, 0.001, 36),
        (480, 0.0021, 0.0021, 395),
    ],
)
def test_a_slice_takes_up_to_two_milliseconds(
    count: int, processor_s: float, took_s: float, size: int
) -> None:
    assert decision_turns.next_size(count, processor_s, took_s) == size


def test_a_request_begins_with_slices_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves of level messages take long; a first slice of each request would delay deliveries."""
    monkeypatch.setattr(decision_turns, "next_size", lambda *slice_and_times: 29)

    async def main() -> None:
        sizes = {"fire": 480}
        size = SliceSize(sizes, "move")
        assert size.count == SLICE_HITS_FIRST
        with size.measured():
            pass
        actions = ("move", "cancel", "fire")
        begin = [SliceSize(sizes, action).count for action in actions]
        assert begin == [29, SLICE_HITS_FIRST, SLICE_HITS_MIN]

    asyncio.run(main())


def test_each_turn_reads_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MIN", 2)
    monkeypatch.setattr(decision_turns, "SLICE_HITS_MAX", 2)
    turns, read = [0], Counter[int]()

    def counted(name: str) -> Any:
        work = getattr(key_search, name)

        def run(store: MessageStore, offsets: Any, *more: Any) -> Any:
            read[turns[0]] += offsets.size
            return work(store, offsets, *more)

        return run

    monkeypatch.setattr(pending_hits, "are_owned", counted("are_owned"))
    monkeypatch.setattr(pending_search, "owners", counted("owners"))

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def work(rig: Rig) -> None:
        counting = asyncio.create_task(count_turns())
        [page] = await rig.pages(topic="T", from_ms=rig.clock.now_ms() + HOUR_MS)
        assert (page.count, sum(read.values()), max(read.values())) == (COUNT, COUNT, 2)
        read.clear()
        assert await rig.decide(page, topic="T") == [DONE] * COUNT
        assert (sum(read.values()), max(read.values())) == (COUNT, 2)
        counting.cancel()

    with_broker(tmp_path, work)


def test_a_topic_is_decided_on_without_newer_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_hits, "PAGE_HITS_MAX", 4)

    async def work(rig: Rig) -> None:
        seen: list[tuple[int, int]] = []
        sent: list[Any] = []
        search = BulkDecisions.search

        async def sending(self: BulkDecisions, one: PendingSearch, failed: Any = None) -> Any:
            async for page in search(self, one, failed):
                yield page
                if not sent:
                    sent.append(await rig.remote.send("T", b"new", UNIQ_KEY="new", DELAY="7"))

        [dry] = await rig.decisions.cancel(topic="T", dry_run=True)
        assert (dry.verdict, dry.messages) == ("done", 2 * COUNT)
        monkeypatch.setattr(BulkDecisions, "search", sending)
        [result] = await rig.decisions.decide(
            "cancel", MessageSelection(topic="T"), progress=lambda *values: seen.append(values)
        )
        assert (result.verdict, result.messages) == ("done", 2 * COUNT)
        assert seen[-1] == (2 * COUNT, 2 * COUNT)
        monkeypatch.undo()
        assert set(keys_of(await rig.pages(topic="T"))) == {"new"}
        [result] = await rig.decisions.move(topic="absent", delay_ms=5)
        assert (result.verdict, result.messages) == ("unknown", 0)

    with_broker(tmp_path, work)


def test_a_page_without_repeated_hits() -> None:
    """A hit that an earlier page may repeat is listed once."""
    hits = PendingHits(
        topics=["T"],
        topic_indexes=[0, 0],
        keys=[b"a", b"b"],
        offsets=[1, 2],
        due_ms=[5, 6],
        cursor=None,
    )
    left = without(hits, {1})
    assert (left.keys, left.offsets, left.due_ms, left.topic_indexes) == ([b"b"], [2], [6], [0])
