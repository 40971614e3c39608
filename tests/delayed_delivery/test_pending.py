"""Pending messages that were found by their names."""

from __future__ import annotations

import numpy as np
import pytest

from delayed_delivery.pending import Found, Verdict

NAMES = 4  # the last one has no pending message


@pytest.mark.parametrize(
    ("from_ms", "until_ms", "offsets", "names"),
    [
        (1_000, 3_001, [10, 20, 30, 40], [0, 1, 2]),
        (1_001, 3_001, [20, 30, 40], [0, 1, 2]),
        (1_000, 3_000, [10, 20, 30], [0, 1]),
        (2_000, 2_001, [20, 30], [0, 1]),
        (4_000, 9_000, [], []),
    ],
    ids=["all", "after the first", "before the last", "one millisecond", "none"],
)
def test_messages_due_in_an_interval(
    from_ms: int, until_ms: int, offsets: list[int], names: list[int]
) -> None:
    verdicts = np.array([Verdict.DONE] * 3 + [Verdict.UNKNOWN], np.int8)
    found = Found(
        np.array([10, 20, 30, 40]),
        np.array([1_000, 2_000, 2_000, 3_000]),
        np.array([0, 0, 1, 2]),
        verdicts,
    )
    within = found.within(from_ms, until_ms)
    assert within.offsets.tolist() == offsets
    assert np.isin(within.due_ms, range(from_ms, until_ms)).all()
    assert set(within.name_index.tolist()) == set(names)
    assert np.flatnonzero(within.verdicts == Verdict.DONE).tolist() == names
    assert within.verdicts.size == NAMES
