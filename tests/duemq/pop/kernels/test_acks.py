"""Groups of acknowledgements and their responses, against twins with dictionaries and the codec."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.net import codec
from duemq.pop.ack_turns import RESPONSE_BYTES_MAX, SUCCESS_PARTS
from duemq.pop.kernels.acks import (
    ALL_KNOWN,
    COLUMNS,
    GROUP_COLUMNS,
    INVISIBLE_MS,
    OFFSET,
    OPAQUE,
    POP_MS,
    QUEUE,
    REVIVE_QUEUE,
    START,
    UNKNOWN,
    AckRows,
    group_acks,
)
from duemq.pop.kernels.matching_frames import INT_MAX
from duemq.pop.names import REVIVE_QUEUES

QUEUES = 3
ROW = {
    OPAQUE: st.sampled_from([0, 9, 10, 12_345, INT_MAX]) | st.integers(0, INT_MAX),
    QUEUE: st.integers(0, QUEUES),
    OFFSET: st.integers(0, 12),
    START: st.sampled_from([0, 7]),
    POP_MS: st.sampled_from([1_000, 2_000]),
    INVISIBLE_MS: st.sampled_from([0, 60_000]),
    REVIVE_QUEUE: st.sampled_from([0, 1, REVIVE_QUEUES - 1, REVIVE_QUEUES, 999]),
}
VALID_ROW = ROW | {QUEUE: st.integers(0, 1), REVIVE_QUEUE: st.integers(0, 1)}
ANY_ROWS = st.lists(st.fixed_dictionaries(ROW), max_size=12)
VALID_ROWS = st.lists(st.fixed_dictionaries(VALID_ROW), max_size=12)
ALL_OFFSETS = (0, 12)
BOUND = st.sampled_from([(UNKNOWN, UNKNOWN), (0, 12), (3, 8), (1, 0)])


def naive_valid(rows: list[dict[int, int]], bounds: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the number of leading valid rows, and the queue whose bounds are missing."""
    for count, row in enumerate(rows):
        if row[QUEUE] >= len(bounds) or row[REVIVE_QUEUE] >= REVIVE_QUEUES:
            return count, ALL_KNOWN
        low, high = bounds[row[QUEUE]]
        if low == UNKNOWN:
            return count, row[QUEUE]
        if not low <= row[OFFSET] <= high:
            return count, ALL_KNOWN
    return len(rows), ALL_KNOWN


def naive_groups(rows: list[dict[int, int]]) -> dict[tuple[int, ...], list[int]]:
    """Return the offsets of each checkpoint in the order of their arrival."""
    groups = {}
    for row in rows:
        key = tuple(row[at] for at in (REVIVE_QUEUE, QUEUE, START, POP_MS, INVISIBLE_MS))
        groups.setdefault(key, []).append(row[OFFSET])
    return groups


def columns_of(rows: list[dict[int, int]]) -> AckRows:
    numbers = np.zeros((max(len(rows), 1), COLUMNS), np.int64)
    for at, row in enumerate(rows):
        for column, value in row.items():
            numbers[at, column] = value
    size = len(numbers)
    return AckRows(
        numbers=numbers,
        frame_ends=np.zeros(size, np.int64),
        group_of=np.zeros(size, np.int64),
        groups=np.full((size, GROUP_COLUMNS), -7, np.int64),
        offsets=np.zeros(size, np.int64),
        responses=np.zeros(size * RESPONSE_BYTES_MAX, np.uint8),
    )


@given(ANY_ROWS, st.lists(BOUND, min_size=QUEUES, max_size=QUEUES))
def test_rows_up_to_an_invalid_one_are_those_of_the_twin(
    rows: list[dict[int, int]], bounds: list[tuple[int, int]]
) -> None:
    compare(rows, bounds)


@given(VALID_ROWS, ANY_ROWS)
def test_groups_and_responses_are_those_of_the_twin(
    valid_rows: list[dict[int, int]], others: list[dict[int, int]]
) -> None:
    compare(valid_rows + others, [ALL_OFFSETS] * QUEUES)


def compare(rows: list[dict[int, int]], bounds: list[tuple[int, int]]) -> None:
    """Compare the results of the kernel with those of the twins."""
    found = columns_of(rows)
    limits = np.array(bounds, np.int64)
    valid, count, size, missing = group_acks(len(rows), limits, SUCCESS_PARTS, found)
    assert (valid, missing) == naive_valid(rows, bounds)
    if missing != ALL_KNOWN:
        assert (count, size) == (0, 0)
        return
    expected = naive_groups(rows[:valid])
    groups = found.groups[:count].tolist()
    assert [tuple(group[:5]) for group in groups] == list(expected)
    starts = [0, *(group[5] for group in groups)]
    offsets = found.offsets[:valid].tolist()
    assert [offsets[a:b] for a, b in pairwise(starts)] == list(expected.values())
    keys = list(expected)
    for row, group in zip(rows[:valid], found.group_of[:valid].tolist(), strict=True):
        assert keys[group] == tuple(
            row[at] for at in (REVIVE_QUEUE, QUEUE, START, POP_MS, INVISIBLE_MS)
        )
    responses = found.responses[:size].tobytes()
    assert responses == b"".join(codec.encode_success(row[OPAQUE]) for row in rows[:valid])


def test_a_topic_without_queues_has_no_valid_acknowledgement() -> None:
    found = columns_of([{QUEUE: 0}])
    assert group_acks(1, np.zeros((0, 2), np.int64), SUCCESS_PARTS, found) == (0, 0, 0, ALL_KNOWN)
