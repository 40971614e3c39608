import asyncio

import pytest

from duemq.net.memory_budget import MemoryBudget
from duemq.pull.held_pulls import HELD_OF_PEER_MAX, HeldPulls, Wake
from duemq.registry.subscriptions import parse_expression
from message_store.clock import FakeClock
from message_store.log.batch import PutBatch
from tests.support.fakes import HOST, FakePeer, FakeStore, put, settle

ALL = parse_expression("T", "*")


def world(**limits):
    clock = FakeClock()
    store = FakeStore(clock)
    held = HeldPulls(clock, store, **limits)
    store.add_dispatcher(held.on_append)
    slot = store.topics.slot(store.topics.add("T"), 0, create=True)
    return clock, store, held, slot


@pytest.mark.parametrize(
    ("expression", "properties", "woken"),
    [
        ("*", b"", True),
        ("a", b"TAGS\x01a\x02", True),
        ("a", b"TAGS\x01b\x02", False),
        ("a||b", b"TAGS\x01b\x02", True),
        ("a", b"", False),
    ],
)
def test_only_a_message_that_passes_the_filter_wakes(run, expression, properties, woken):
    async def scene():
        _, store, held, slot = world()
        pull = held.hold(slot, parse_expression("T", expression), None, 1_000)
        put(store, "T", b"x", properties=properties)
        assert pull.woken.done() is woken
        assert len(held) == (0 if woken else 1)

    run(scene())


@pytest.mark.finding("A10")
def test_held_pulls_take_memory_from_the_budget(run):
    async def scene():
        memory = MemoryBudget(1 << 20)
        _, _, held, slot = world(memory=memory)
        long = parse_expression("T", "||".join(f"tag{n}" for n in range(1_000)))
        pulls = [held.hold(slot, long, None, 1_000) for _ in range(100)]
        taken = [pull for pull in pulls if pull is not None]
        assert 0 < len(taken) < 20
        assert memory.used_bytes <= memory.limit_bytes
        for pull in taken:
            held.release(pull)
            held.release(pull)
        assert memory.used_bytes == 0

    run(scene())


def test_other_queues_do_not_wake(run):
    async def scene():
        _, store, held, slot = world()
        pull = held.hold(slot, ALL, None, 1_000)
        put(store, "T", b"x", queue_id=1)
        put(store, "U", b"x")
        assert not pull.woken.done()

    run(scene())


def test_one_task_ends_every_pull_at_its_time(run):
    async def scene():
        clock, _, held, slot = world()
        async with held.running():
            pulls = [held.hold(slot, ALL, None, ms) for ms in (1_000, 5_000, 2_000)]
            await settle()
            clock.advance(1_249)
            await settle()
            assert [p.woken.done() for p in pulls] == [True, False, False]
            clock.advance(1_000)
            await settle()
            assert [p.woken.done() for p in pulls] == [True, False, True]
            assert await pulls[0].woken is Wake.TIMED_OUT
        assert await pulls[1].woken is Wake.STOPPING

    run(scene())


def test_a_pull_is_never_ended_before_its_time(run):
    async def scene():
        clock, _, held, slot = world()
        pull = held.hold(slot, ALL, None, 333)
        for _ in range(332):
            clock.advance(1)
            held.expire(clock.steady_ms())
        assert not pull.woken.done()

    run(scene())


def test_a_closed_connection_drops_its_pulls(run):
    async def scene():
        _, store, held, slot = world()
        gone, here = FakePeer("gone"), FakePeer("here")
        dropped, kept = held.hold(slot, ALL, gone, 9), held.hold(slot, ALL, here, 9)
        gone.close()
        assert await dropped.woken is Wake.DROPPED
        assert held.hold(slot, ALL, gone, 9) is None
        put(store, "T", b"x")
        assert await kept.woken is Wake.ARRIVED
        assert len(held) == 0

    run(scene())


def test_places_are_limited(run):
    async def scene():
        _, _, held, slot = world(held_max=2)
        places = [held.hold(slot, ALL, None, 9) for _ in range(3)]
        assert [p is not None for p in places] == [True, True, False]
        held.release(places[0])
        held.release(places[0])
        assert held.hold(slot, ALL, None, 9) is not None

    run(scene())


def test_places_of_one_connection_are_limited(run):
    async def scene():
        _, _, held, slot = world()
        peer = FakePeer()
        for _ in range(HELD_OF_PEER_MAX):
            assert held.hold(slot, ALL, peer, 9) is not None
        assert held.hold(slot, ALL, peer, 9) is None
        assert held.hold(slot, ALL, FakePeer(), 9) is not None

    run(scene())


def test_a_cancelled_pull_is_taken_out(run):
    async def scene():
        _, store, held, slot = world()
        pull = held.hold(slot, ALL, None, 9)

        async def wait():
            try:
                await pull.woken
            finally:
                held.release(pull)

        task = asyncio.create_task(wait())
        await settle()
        task.cancel()
        await settle()
        assert len(held) == 0
        put(store, "T", b"x")

    run(scene())


def test_slots_beyond_the_first_table_are_watched(run):
    async def scene():
        _, store, held, _ = world()
        topic = store.topics.add("W")
        slots = [store.topics.slot(topic, n, create=True) for n in range(200)]
        pull = held.hold(slots[-1], ALL, None, 9)
        put(store, "W", b"x", queue_id=199)
        assert pull.woken.done()

    run(scene())


@pytest.mark.parametrize("queue_id", [0, 1, 2])
def test_a_pull_of_several_queues_is_woken_once_by_any_of_them(run, queue_id):
    async def scene():
        memory = MemoryBudget(1 << 20)
        _, store, held, slot = world(memory=memory)
        more = [store.topics.slot(store.topics.add("T"), n, create=True) for n in (1, 2)]
        pull = held.hold(slot, ALL, None, 1_000, also=[*more, slot])
        assert (len(held), pull.woken.done()) == (1, False)
        batch = put(store, "T", b"x", queue_id=queue_id)
        assert pull.woken.result() is Wake.ARRIVED
        assert (len(held), memory.used_bytes) == (0, 0)
        held.release(pull)
        held.on_append(batch)

    run(scene())


def test_one_batch_for_two_queues_of_a_pull_wakes_it_once(run):
    async def scene():
        _, store, held, slot = world()
        second = store.topics.slot(store.topics.add("T"), 1, create=True)
        both = put_batch_of(store, 0, 1)
        pull, other = (
            held.hold(slot, ALL, None, 1_000, also=[second]),
            held.hold(second, ALL, None, 9),
        )
        held.on_append(both)
        assert pull.woken.result() is other.woken.result() is Wake.ARRIVED
        assert len(held) == 0

    run(scene())


def put_batch_of(store, *queues):
    batch = PutBatch(len(queues))
    for queue_id in queues:
        batch.add(
            topic_index=store.topics.add("T"), queue_id=queue_id, body=b"x", properties=b"",
            born_ms=1, born_host=HOST, store_host=HOST,
        )  # fmt: skip
    store.put(batch)
    return batch
