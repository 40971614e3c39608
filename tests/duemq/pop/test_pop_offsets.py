"""Offsets of pops: committed on confirmation of the checkpoints; resets in between."""

from __future__ import annotations

import pytest

from duemq.pop.pop_offsets import FROM_FIRST, FROM_LAST, GroupQueue, PopOffsets
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from tests.support.fakes import FakeOffsets, FakeStore, put

PLACE = GroupQueue("g", "T", 0)


class Rig:
    def __init__(self, count: int = 0) -> None:
        self.store, self.offsets = FakeStore(FakeClock()), FakeOffsets()
        if count:
            put(self.store, "T", *[b"x"] * count)
        self.pops = PopOffsets(self.store, self.offsets)

    @property
    def committed(self) -> int | None:
        return self.offsets.query("g", "T", 0)


def test_a_pop_advances_at_once_and_commits_on_confirmation() -> None:
    run_rig = Rig(9)
    run_rig.pops.move(PLACE, 3)
    run_rig.pops.move(PLACE, 7)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (7, None)
    run_rig.pops.commit(PLACE, 3)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (7, 3)
    run_rig.pops.commit(PLACE, 7)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (7, 7)


def test_a_committed_offset_includes_all_earlier_pops() -> None:
    """A pop with a late confirmation is committed before the offset advances past it."""
    run_rig = Rig(9)
    before = run_rig.store.max_offset
    run_rig.store.confirm(before)
    put(run_rig.store, "T", b"a checkpoint")
    run_rig.pops.put(before, [(PLACE, 3)])
    run_rig.pops.move(PLACE, 3)
    assert (run_rig.pops.before, run_rig.committed) == (before, None)
    run_rig.store.confirm(run_rig.store.max_offset)
    assert (run_rig.pops.before, run_rig.committed) == (run_rig.store.max_offset, 3)


def test_an_unconfirmed_pop_of_a_deleted_topic_is_never_committed() -> None:
    run_rig = Rig(9)
    before = run_rig.store.max_offset
    run_rig.store.confirm(before)
    put(run_rig.store, "T", b"a checkpoint")
    other = GroupQueue("g", "U", 0)
    run_rig.pops.put(before, [(PLACE, 3), (other, 2)])
    run_rig.pops.move(PLACE, 3)
    run_rig.pops.move(other, 2)
    run_rig.pops.forget_topic("T")
    run_rig.store.confirm(run_rig.store.max_offset)
    run_rig.pops.settle()
    assert run_rig.pops.following(PLACE, FROM_FIRST) == 0
    assert (run_rig.committed, run_rig.offsets.query("g", "U", 0)) == (None, 2)


def test_confirmations_out_of_order_do_not_move_the_offset_back() -> None:
    run_rig = Rig(9)
    run_rig.pops.move(PLACE, 3)
    run_rig.pops.move(PLACE, 7)
    run_rig.pops.commit(PLACE, 7)
    run_rig.pops.commit(PLACE, 3)
    assert run_rig.committed == 7


def test_skipped_messages_are_committed_after_the_pop_before_them() -> None:
    run_rig = Rig(9)
    run_rig.pops.skip(PLACE, 2)
    assert run_rig.committed == 2
    run_rig.pops.move(PLACE, 5)
    run_rig.pops.skip(PLACE, 8)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (8, 2)
    run_rig.pops.commit(PLACE, 5)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (8, 5)


def test_a_reset_overrides_earlier_confirmations() -> None:
    run_rig = Rig(9)
    run_rig.pops.move(PLACE, 7)
    run_rig.offsets.set_reset("g", "T", 0, 1)
    assert run_rig.pops.following(PLACE, FROM_FIRST) == 1
    run_rig.pops.commit(PLACE, 7)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (1, 1)


@pytest.mark.parametrize(
    ("place", "mode", "removed", "first"),
    [
        (PLACE, FROM_FIRST, 0, 0),
        (PLACE, FROM_FIRST, 4, 4),
        (PLACE, FROM_LAST, 0, 0),  # a young queue
        (PLACE, FROM_LAST, 4, 8),
        (GroupQueue("g", "U", 0), FROM_LAST, 0, 0),  # an empty one
    ],
)
def test_a_new_group_begins_where_apaches_does(
    place: GroupQueue, mode: int, removed: int, first: int
) -> None:
    run_rig = Rig(9)
    run_rig.store.first[0] = removed
    assert run_rig.pops.following(place, mode) == first


def test_an_undone_pop_also_undoes_later_skips() -> None:
    run_rig = Rig(9)
    run_rig.pops.move(PLACE, 3)
    run_rig.pops.skip(PLACE, 5)
    run_rig.pops.move_back(PLACE, 0, 3)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (0, None)
    run_rig.pops.move(PLACE, 2)
    run_rig.pops.commit(PLACE, 2)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (2, 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pops_are_undone_in_any_order(order: tuple[int, int]) -> None:
    run_rig, pops = Rig(9), ((2, 4), (4, 7))
    run_rig.pops.move(PLACE, 2)  # of an earlier turn, confirmed below
    for _, end in pops:
        run_rig.pops.move(PLACE, end)
    for index in order:
        run_rig.pops.move_back(PLACE, *pops[index])
    assert run_rig.pops.following(PLACE, FROM_FIRST) == 2
    run_rig.pops.commit(PLACE, 2)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (2, 2)


def test_undoing_a_pop_does_not_undo_a_reset() -> None:
    run_rig = Rig(9)
    run_rig.pops.move(PLACE, 7)
    run_rig.offsets.set_reset("g", "T", 0, 1)
    assert run_rig.pops.following(PLACE, FROM_FIRST) == 1
    run_rig.pops.move_back(PLACE, 5, 7)
    assert (run_rig.pops.following(PLACE, FROM_FIRST), run_rig.committed) == (1, 1)


class FullOffsets(FakeOffsets):
    """Offset table at consumerOffsetsMax: refuses new pairs of a group and a topic."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self.query(group, topic, queue_id) is None:
            raise RequestError(1, "full")
        super().commit(group, topic, queue_id, offset)


def test_pops_of_known_queues_commit_while_the_table_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pops of other queues continue in memory until a restart."""
    run_rig, other = Rig(9), GroupQueue("g", "U", 0)
    run_rig.offsets = FullOffsets({("g", "U", 0): 0})
    pops = PopOffsets(run_rig.store, run_rig.offsets)
    for place in (PLACE, other):
        pops.move(place, 3)
    pops.put(0, [(PLACE, 3), (other, 3)])
    assert pops.before == run_rig.store.max_offset
    assert run_rig.offsets.query("g", "U", 0) == 3
    assert pops.following(PLACE, FROM_FIRST) == 3
    for topic in ("V", "W"):
        skipped = GroupQueue("g", topic, 0)
        pops.skip(skipped, 5)
        assert pops.following(skipped, FROM_FIRST) == 5
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "offsets of pops are not stored"
    ]
