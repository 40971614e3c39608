"""Offsets of pops: committed once their checkpoint is confirmed, and resets between."""

from __future__ import annotations

import pytest

from duemq.pop.pop_offsets import FROM_FIRST, FROM_LAST, Place, PopOffsets
from message_store.clock import FakeClock
from message_store.errors import RequestError
from tests.support.fakes import FakeOffsets, FakeStore, put

PLACE = Place("g", "T", 0)


class World:
    def __init__(self, count: int = 0) -> None:
        self.store, self.offsets = FakeStore(FakeClock()), FakeOffsets()
        if count:
            put(self.store, "T", *[b"x"] * count)
        self.pops = PopOffsets(self.store, self.offsets)  # type: ignore[arg-type]

    @property
    def committed(self) -> int | None:
        return self.offsets.query("g", "T", 0)


def test_a_pop_moves_on_at_once_and_commits_when_it_is_confirmed() -> None:
    world = World(9)
    world.pops.move(PLACE, 3)
    world.pops.move(PLACE, 7)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (7, None)
    world.pops.commit(PLACE, 3)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (7, 3)
    world.pops.commit(PLACE, 7)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (7, 7)


def test_a_table_never_lacks_a_pop_before_the_offset_that_it_names() -> None:
    """A pop that is confirmed late is committed before the offset passes it."""
    world = World(9)
    before = world.store.max_offset
    world.store.confirm(before)
    put(world.store, "T", b"a checkpoint")
    world.pops.put(before, [(PLACE, 3)])
    world.pops.move(PLACE, 3)
    assert (world.pops.before, world.committed) == (before, None)
    world.store.confirm(world.store.max_offset)
    assert (world.pops.before, world.committed) == (world.store.max_offset, 3)


def test_confirmations_out_of_order_never_go_back() -> None:
    world = World(9)
    world.pops.move(PLACE, 3)
    world.pops.move(PLACE, 7)
    world.pops.commit(PLACE, 7)
    world.pops.commit(PLACE, 3)
    assert world.committed == 7


def test_what_is_skipped_waits_for_the_pop_before_it() -> None:
    world = World(9)
    world.pops.skip(PLACE, 2)
    assert world.committed == 2
    world.pops.move(PLACE, 5)
    world.pops.skip(PLACE, 8)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (8, 2)
    world.pops.commit(PLACE, 5)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (8, 5)


def test_a_reset_counts_and_a_confirmation_from_before_it_does_not() -> None:
    world = World(9)
    world.pops.move(PLACE, 7)
    world.offsets.set_reset("g", "T", 0, 1)
    assert world.pops.following(PLACE, FROM_FIRST) == 1
    world.pops.commit(PLACE, 7)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (1, 1)


@pytest.mark.parametrize(
    ("place", "mode", "removed", "first"),
    [
        (PLACE, FROM_FIRST, 0, 0),
        (PLACE, FROM_FIRST, 4, 4),
        (PLACE, FROM_LAST, 0, 0),  # a young queue
        (PLACE, FROM_LAST, 4, 8),
        (Place("g", "U", 0), FROM_LAST, 0, 0),  # an empty one
    ],
)
def test_a_new_group_begins_where_apaches_does(
    place: Place, mode: int, removed: int, first: int
) -> None:
    world = World(9)
    world.store.first[0] = removed
    assert world.pops.following(place, mode) == first


def test_what_is_given_back_is_popped_again_with_what_was_skipped_after_it() -> None:
    world = World(9)
    world.pops.move(PLACE, 3)
    world.pops.skip(PLACE, 5)
    world.pops.move_back(PLACE, 0, 3)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (0, None)
    world.pops.move(PLACE, 2)
    world.pops.commit(PLACE, 2)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (2, 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pops_are_given_back_in_any_order(order: tuple[int, int]) -> None:
    world, pops = World(9), ((2, 4), (4, 7))
    world.pops.move(PLACE, 2)  # of an earlier turn, confirmed below
    for _, end in pops:
        world.pops.move(PLACE, end)
    for index in order:
        world.pops.move_back(PLACE, *pops[index])
    assert world.pops.following(PLACE, FROM_FIRST) == 2
    world.pops.commit(PLACE, 2)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (2, 2)


def test_a_reset_is_not_undone_by_giving_back() -> None:
    world = World(9)
    world.pops.move(PLACE, 7)
    world.offsets.set_reset("g", "T", 0, 1)
    assert world.pops.following(PLACE, FROM_FIRST) == 1
    world.pops.move_back(PLACE, 5, 7)
    assert (world.pops.following(PLACE, FROM_FIRST), world.committed) == (1, 1)


class FullOffsets(FakeOffsets):
    """Takes no new pair of a group and a topic, as when consumerOffsetsMax is reached."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self.query(group, topic, queue_id) is None:
            raise RequestError(1, "full")
        super().commit(group, topic, queue_id, offset)


def test_a_full_table_stops_no_other_pop() -> None:
    """Pops continue where they are until a restart; those of known places are committed."""
    world, other = World(9), Place("g", "U", 0)
    world.offsets = FullOffsets({("g", "U", 0): 0})
    pops = PopOffsets(world.store, world.offsets)  # type: ignore[arg-type]
    for place in (PLACE, other):
        pops.move(place, 3)
    pops.put(0, [(PLACE, 3), (other, 3)])
    assert pops.before == world.store.max_offset
    assert world.offsets.query("g", "U", 0) == 3
    assert pops.following(PLACE, FROM_FIRST) == 3
    skipped = Place("g", "V", 0)
    pops.skip(skipped, 5)
    assert pops.following(skipped, FROM_FIRST) == 5
