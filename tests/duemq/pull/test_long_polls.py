from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duemq.net.memory import MemoryBudget
from duemq.pull.long_polls import POLLS_PER_PEER_MAX, LongPolls, ResumeReason
from duemq.registry.subscriptions import parse_expression
from duemq_common.clock import FakeClock
from message_store.log.batch import PutBatch
from tests.support.fakes import HOST, FakePeer, FakeStore, put, settle

ALL = parse_expression("T", "*")


def rig(**limits: MemoryBudget | int) -> tuple[FakeClock, FakeStore, LongPolls, int]:
    clock = FakeClock()
    store = FakeStore(clock)
    polls = LongPolls(clock, store, **limits)
    store.add_dispatcher(polls.on_append)
    slot = store.topics.slot(store.topics.add("T"), 0, create=True)
    return clock, store, polls, slot


@pytest.mark.parametrize(
    ("expression", "properties", "resumed"),
    [
        ("*", b"", True),
        ("a", b"TAGS\x01a\x02", True),
        ("a", b"TAGS\x01b\x02", False),
        ("a||b", b"TAGS\x01b\x02", True),
        ("a", b"", False),
    ],
)
def test_only_a_message_that_passes_the_filter_resumes(
    run: Callable[..., Any], expression: str, properties: bytes, resumed: bool
) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        pull = polls.hold(slot, parse_expression("T", expression), None, 1_000)
        put(store, "T", b"x", properties=properties)
        assert pull.resumed.done() is resumed
        assert len(polls) == (0 if resumed else 1)

    run(scene())


@pytest.mark.finding("A10")
def test_long_polls_take_memory_from_the_budget(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        memory = MemoryBudget(1 << 20)
        _, _, polls, slot = rig(memory=memory)
        long = parse_expression("T", "||".join(f"tag{n}" for n in range(1_000)))
        pulls = [polls.hold(slot, long, None, 1_000) for _ in range(100)]
        taken = [pull for pull in pulls if pull is not None]
        assert 0 < len(taken) < 20
        assert memory.used_bytes <= memory.limit_bytes
        for pull in taken:
            polls.release(pull)
            polls.release(pull)
        assert memory.used_bytes == 0

    run(scene())


def test_messages_of_other_queues_do_not_resume(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        pull = polls.hold(slot, ALL, None, 1_000)
        put(store, "T", b"x", queue_id=1)
        put(store, "U", b"x")
        assert not pull.resumed.done()

    run(scene())


def test_one_task_resumes_every_pull_at_its_deadline(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        clock, _, polls, slot = rig()
        async with polls.running():
            pulls = [polls.hold(slot, ALL, None, ms) for ms in (1_000, 5_000, 2_000)]
            await settle()
            clock.advance(1_249)
            await settle()
            assert [p.resumed.done() for p in pulls] == [True, False, False]
            clock.advance(1_000)
            await settle()
            assert [p.resumed.done() for p in pulls] == [True, False, True]
            assert await pulls[0].resumed is ResumeReason.TIMED_OUT
        assert await pulls[1].resumed is ResumeReason.STOPPING

    run(scene())


def test_no_pull_is_resumed_before_its_deadline(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        clock, _, polls, slot = rig()
        pull = polls.hold(slot, ALL, None, 333)
        for _ in range(332):
            clock.advance(1)
            polls.expire(clock.steady_ms())
        assert not pull.resumed.done()

    run(scene())


def test_a_closed_connection_drops_its_pulls(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        gone, here = FakePeer("gone"), FakePeer("here")
        dropped, kept = polls.hold(slot, ALL, gone, 9), polls.hold(slot, ALL, here, 9)
        gone.close()
        assert await dropped.resumed is ResumeReason.DROPPED
        assert polls.hold(slot, ALL, gone, 9) is None
        put(store, "T", b"x")
        assert await kept.resumed is ResumeReason.ARRIVED
        assert len(polls) == 0

    run(scene())


def test_long_polls_are_bounded(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, _, polls, slot = rig(polls_max=2)
        places = [polls.hold(slot, ALL, None, 9) for _ in range(3)]
        assert [p is not None for p in places] == [True, True, False]
        polls.release(places[0])
        polls.release(places[0])
        assert polls.hold(slot, ALL, None, 9) is not None

    run(scene())


def test_long_polls_of_one_connection_are_bounded(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, _, polls, slot = rig()
        peer = FakePeer()
        for _ in range(POLLS_PER_PEER_MAX):
            assert polls.hold(slot, ALL, peer, 9) is not None
        assert polls.hold(slot, ALL, peer, 9) is None
        assert polls.hold(slot, ALL, FakePeer(), 9) is not None

    run(scene())


def test_a_cancelled_pull_is_released(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        pull = polls.hold(slot, ALL, None, 9)

        async def wait() -> None:
            try:
                await pull.resumed
            finally:
                polls.release(pull)

        task = asyncio.create_task(wait())
        await settle()
        task.cancel()
        await settle()
        assert len(polls) == 0
        put(store, "T", b"x")

    run(scene())


def test_slots_beyond_the_first_table_resume_pulls(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, _ = rig()
        topic = store.topics.add("W")
        slots = [store.topics.slot(topic, n, create=True) for n in range(200)]
        pull = polls.hold(slots[-1], ALL, None, 9)
        put(store, "W", b"x", queue_id=199)
        assert pull.resumed.done()

    run(scene())


@pytest.mark.parametrize("queue_id", [0, 1, 2])
def test_a_pull_of_several_queues_is_resumed_once_by_any_of_them(
    run: Callable[..., Any], queue_id: int
) -> None:
    async def scene() -> None:
        memory = MemoryBudget(1 << 20)
        _, store, polls, slot = rig(memory=memory)
        more = [store.topics.slot(store.topics.add("T"), n, create=True) for n in (1, 2)]
        pull = polls.hold(slot, ALL, None, 1_000, also=[*more, slot])
        assert (len(polls), pull.resumed.done()) == (1, False)
        batch = put(store, "T", b"x", queue_id=queue_id)
        assert pull.resumed.result() is ResumeReason.ARRIVED
        assert (len(polls), memory.used_bytes) == (0, 0)
        polls.release(pull)
        polls.on_append(batch)

    run(scene())


def test_one_batch_for_two_queues_of_a_pull_resumes_it_once(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        second = store.topics.slot(store.topics.add("T"), 1, create=True)
        both = put_batch_of(store, 0, 1)
        pull, other = (
            polls.hold(slot, ALL, None, 1_000, also=[second]),
            polls.hold(second, ALL, None, 9),
        )
        polls.on_append(both)
        assert pull.resumed.result() is other.resumed.result() is ResumeReason.ARRIVED
        assert len(polls) == 0

    run(scene())


def put_batch_of(store: FakeStore, *queues: int) -> PutBatch:
    batch = PutBatch(len(queues))
    for queue_id in queues:
        batch.add(
            topic_index=store.topics.add("T"),
            queue_id=queue_id,
            body=b"x",
            properties=b"",
            born_ms=1,
            born_host=HOST,
            store_host=HOST,
        )
    store.put(batch)
    return batch


SHARE = "pops of one group"


def test_a_message_resumes_the_first_of_the_pulls_that_share(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        memory = MemoryBudget(1 << 20)
        _, store, polls, slot = rig(memory=memory)
        shared = [polls.hold(slot, ALL, None, 1_000, share=SHARE) for _ in range(3)]
        single = polls.hold(slot, ALL, None, 1_000)
        other = polls.hold(slot, ALL, None, 1_000, share="another group")
        for number in range(3):
            assert [pull.resumed.done() for pull in shared] == [n < number for n in range(3)]
            put(store, "T", b"x")
        assert all(pull.resumed.done() for pull in [*shared, single, other])
        assert (len(polls), memory.used_bytes) == (0, 0)
        put(store, "T", b"x")

    run(scene())


def test_pulls_that_share_are_resumed_by_their_own_filters(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        a, b = parse_expression("T", "a"), parse_expression("T", "b")
        pulls = [polls.hold(slot, each, None, 1_000, share=SHARE) for each in (a, b, b, ALL)]
        put(store, "T", b"x", properties=b"TAGS\x01b\x02")
        assert [pull.resumed.done() for pull in pulls] == [False, True, False, True]
        polls.resume_shared(SHARE)
        assert [pull.resumed.done() for pull in pulls] == [True, True, True, True]
        polls.resume_shared(SHARE)

    run(scene())


def test_the_next_pull_is_resumed_if_messages_remain(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        _, store, polls, slot = rig()
        first, second, third = (polls.hold(slot, ALL, None, 9, share=SHARE) for _ in range(3))
        put(store, "T", b"x")
        polls.release(first)
        polls.release(second)  # its client has gone
        polls.resume_shared(SHARE)
        assert third.resumed.result() is ResumeReason.ARRIVED
        assert not second.resumed.done()

    run(scene())


class Unconfirmed:
    """A log whose end consumers may not read until `confirm`."""

    def __init__(self) -> None:
        self.max_offset, self.confirm_offset, self.calls = 0, 0, list[Any]()

    def when_confirmed(self, offset: int, call: Callable[..., Any]) -> None:
        self.calls.append((offset, call))

    def confirm(self) -> None:
        self.confirm_offset = self.max_offset
        calls, self.calls = self.calls, []
        for offset, call in calls:
            assert offset <= self.confirm_offset
            call()


def unconfirmed_rig() -> tuple[Unconfirmed, LongPolls, int, Callable[..., Any]]:
    clock, log = FakeClock(), Unconfirmed()
    store, polls = FakeStore(clock), LongPolls(clock, log)
    slot = store.topics.slot(store.topics.add("T"), 0, create=True)

    def arrive() -> None:
        log.max_offset += 100
        polls.on_append(put(store, "T", b"x"))

    return log, polls, slot, arrive


def test_of_pulls_that_share_one_is_resumed_for_each_confirmed_end(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        log, polls, slot, arrive = unconfirmed_rig()
        pulls = [polls.hold(slot, ALL, None, 9, share=SHARE) for _ in range(4)]
        arrive()
        arrive()
        polls.resume_when_confirmed(pulls)
        assert not any(pull.resumed.done() for pull in pulls)
        log.confirm()
        assert [pull.resumed.done() for pull in pulls] == [True, True, False, False]
        arrive()
        log.confirm()
        assert [pull.resumed.done() for pull in pulls] == [True, True, True, False]

    run(scene())


def test_if_a_pull_is_released_before_confirmation_the_next_is_resumed(
    run: Callable[..., Any],
) -> None:
    async def scene() -> None:
        log, polls, slot, arrive = unconfirmed_rig()
        first, second, third = (polls.hold(slot, ALL, None, 9, share=SHARE) for _ in range(3))
        arrive()
        polls.release(first)
        log.confirm()
        assert (second.resumed.done(), third.resumed.done()) == (True, False)
        arrive()
        log.confirm()
        assert third.resumed.done()

    run(scene())
