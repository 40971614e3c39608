"""Pairing of checkpoints and acknowledgements, against a list and a filter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.checkpoints import Acknowledgement, PopCheckpoint
from duemq.pop.revival.pairing import Pairing


def checkpoint(start: int, revive_ms: int, *offsets: int) -> PopCheckpoint:
    return PopCheckpoint("T", "g", 0, start, 0, revive_ms, offsets or (start,), "b")


def ack(start: int, *offsets: int) -> Acknowledgement:
    return Acknowledgement("T", "g", 0, start, 0, offsets, "b", 0)


def test_progress_stops_at_the_first_open_checkpoint() -> None:
    pairing = Pairing(5)
    for record in (checkpoint(1, 100), checkpoint(2, 50), None, ack(1, 1)):
        pairing.add(record)
    assert (pairing.settled_before, pairing.next_offset) == (6, 9)
    assert pairing.due(49, 9) == []
    ((at, found),) = pairing.due(50, 9)
    assert (at, found.unacknowledged) == (6, [2])
    pairing.settle(at)
    assert (pairing.settled_before, len(pairing), pairing.next_ms) == (9, 0, None)


def test_two_checkpoints_with_one_key_are_both_acknowledged() -> None:
    pairing = Pairing(0)
    for record in (checkpoint(1, 100, 1, 2), checkpoint(1, 100, 1, 2, 3), ack(1, 1, 2)):
        pairing.add(record)
    ((at, found),) = pairing.due(100, 9)
    assert (at, found.unacknowledged) == (1, [3])


RECORDS = st.lists(
    st.one_of(
        st.builds(checkpoint, st.integers(0, 3), st.integers(0, 9)),
        st.builds(ack, st.integers(0, 3), st.integers(0, 3)),
        st.none(),
    ),
    max_size=30,
)


@given(records=RECORDS, through_ms=st.integers(0, 9))
def test_due_checkpoints_are_unacknowledged_and_in_order_of_time(
    records: list[PopCheckpoint | Acknowledgement | None], through_ms: int
) -> None:
    pairing = Pairing(0)
    naive: list[tuple[int, PopCheckpoint]] = []
    for at, record in enumerate(records):
        pairing.add(record)
        if isinstance(record, PopCheckpoint):
            naive.append((at, record))
        elif record is not None:
            naive = [
                (n, c)
                for n, c in naive
                if c.key != record.key or set(c.offsets) - {*record.offsets}
            ]
    due = sorted((c.revive_ms, at) for at, c in naive if c.revive_ms <= through_ms)
    assert [at for at, _ in pairing.due(through_ms, 99)] == [at for _, at in due]
    assert len(pairing) == len(naive)
    assert pairing.settled_before == min((at for at, _ in naive), default=len(records))


def test_a_postponed_checkpoint_is_due_again_after_a_pause_that_doubles() -> None:
    pairing = Pairing(0)
    for record in (checkpoint(1, 100), checkpoint(2, 101)):
        pairing.add(record)
    now_ms = 200
    for pause_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        assert [at for at, _ in pairing.due(now_ms, 9)] == [0, 1]
        pairing.postpone(0, now_ms)
        assert (pairing.has_failed(0), pairing.has_failed(1)) == (True, False)
        assert [at for at, _ in pairing.due(now_ms + pause_ms - 1, 9)] == [1]
        assert (pairing.first_ms, pairing.next_ms) == (100, 101)
        now_ms += pause_ms
    pairing.settle(1)
    pairing.postpone(0, now_ms)
    assert (pairing.first_ms, pairing.next_ms) == (100, now_ms + 60_000)
    pairing.end_pauses()
    assert [at for at, _ in pairing.due(100, 9)] == [0]
    pairing.postpone(0, now_ms)
    pairing.settle(0)
    assert (pairing.first_ms, pairing.next_ms, pairing.due(1 << 40, 9)) == (None, None, [])


def popped(start: int, pop_ms: int, stored_ms: int) -> PopCheckpoint:
    """Return a checkpoint with an invisible time of 1 s."""
    return PopCheckpoint("T", "g", 0, start, pop_ms, 1_000, (start,), "b", stored_ms=stored_ms)


def test_a_pop_of_a_clock_that_was_ahead_is_due_after_its_invisible_time() -> None:
    pairing = Pairing(0)
    pairing.set_time(90_600)
    pairing.add(popped(0, 90_000, 90_500))  # delivered before the step
    pairing.set_time(10_000)
    pairing.add(popped(1, 90_000, 10_000))  # fired after the step
    pairing.add(popped(2, 90_000, 90_500))  # delivered before the step, and read after it
    assert pairing.due(10_399, 9) == []
    assert [at for at, _ in pairing.due(10_400, 9)] == [0]  # its invisible time continues
    assert [at for at, _ in pairing.due(11_000, 9)] == [0, 1, 2]
    assert pairing.set_time(10_800) == []
    pairing.set_time(5_000)
    assert [at for at, _ in pairing.due(5_199, 9)] == [0]
    assert [at for at, _ in pairing.due(5_200, 9)] == [0, 1, 2]
    assert len(pairing.set_time(90_000)) == 3  # the clock is set forward again
    assert pairing.due(90_999, 9) == []
    assert [at for at, _ in pairing.due(91_000, 9)] == [0, 1, 2]


def test_a_record_of_a_clock_that_was_ahead_shows_nothing_about_others() -> None:
    pairing = Pairing(0)
    pairing.set_time(90_000)
    pairing.add(popped(1, 89_000, 89_900))
    assert pairing.decidable_ms == 88_999
    pairing.set_time(50_000)
    assert pairing.decidable_ms == 0  # its acknowledgements may follow
    pairing.settle(0)
    assert pairing.decidable_ms == 49_999
    pairing.add(popped(2, 90_000, 50_000))
    pairing.settle(1)
    pairing.set_time(60_000)
    assert pairing.decidable_ms == 49_999
    pairing.add(popped(3, 58_000, 58_000))
    assert pairing.decidable_ms == 57_999
