"""Survey of timers, against the functions that place and count them in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from timer_store.kernels.enqueue import Cursors, count_pending, survey
from timer_store.layout import TIMED, TIMED_BROKEN, TIMED_MARKER, TIMED_PLAIN
from timer_store.log.slot_choice import slot_times

PRECISION_MS, WINDOW_MS, FILE_BYTES = 100, 5_000, 1_000
KINDS = st.sampled_from([TIMED_PLAIN, TIMED_MARKER, TIMED_BROKEN])
ROWS = st.lists(
    st.tuples(st.integers(0, 40_000), KINDS, st.integers(0, 3_000), st.integers(-1, 8)),
    min_size=1,
    max_size=8,
)


def timed(rows: list[tuple[int, int, int, int]]) -> npt.NDArray[np.void]:
    found = np.zeros(len(rows), TIMED)
    for at, (due_ms, kind, phys_offset, topic_index) in enumerate(rows):
        found[at]["due_ms"], found[at]["kind"] = due_ms, kind
        found[at]["phys_offset"], found[at]["topic_index"] = phys_offset, topic_index
    return found


@given(ROWS, st.integers(1, 300), st.integers(0, 50))
def test_slots_and_times_are_those_of_the_twin(
    rows: list[tuple[int, int, int, int]], read: int, ahead: int
) -> None:
    found = timed(rows)
    read_ms = read * PRECISION_MS
    staged_ms = read_ms + ahead * PRECISION_MS
    plain, earliest_ms, near = survey(found, Cursors(read_ms, staged_ms, WINDOW_MS, PRECISION_MS))
    due_ms = found["due_ms"]
    slot_ms = slot_times(due_ms, read_ms, staged_ms, WINDOW_MS)
    assert found["slot_ms"].tolist() == slot_ms.tolist()
    assert plain == np.count_nonzero(found["kind"] == TIMED_PLAIN)
    assert earliest_ms == int(np.minimum(slot_ms, due_ms).min())
    assert near == bool(((slot_ms < staged_ms + PRECISION_MS) | (due_ms <= slot_ms)).any())


@given(ROWS, st.sampled_from([1, -1]))
def test_counts_are_those_of_the_twin(rows: list[tuple[int, int, int, int]], sign: int) -> None:
    found = timed(rows)
    by_topic = np.arange(8, dtype=np.int64)
    before = by_topic.copy()
    base = count_pending(found, by_topic, sign, FILE_BYTES)
    files = set((found["phys_offset"] // FILE_BYTES).tolist())
    if len(files) > 1 or found["topic_index"].max() >= 7:
        assert base == -1
        assert by_topic.tolist() == before.tolist()
        return
    assert base == files.pop() * FILE_BYTES
    np.add.at(before, found["topic_index"] + 1, sign)
    assert by_topic.tolist() == before.tolist()
