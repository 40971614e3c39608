"""Start of the records at the end of the log that all name origins."""

from __future__ import annotations

import numpy as np
import pytest

from message_store.layout import SCANNED
from timer_store.pending.origin_run import RUN_BYTES_MAX, OriginRun

START, SIZE = 1_000, 100
MESSAGE, ORIGIN = 0, -5  # prepared offsets


def rows_of(prepared: list[int], start: int) -> np.ndarray:
    rows = np.zeros(len(prepared), SCANNED)
    rows["phys_offset"] = start + SIZE * np.arange(len(prepared))
    rows["record_size"], rows["prepared_offset"] = SIZE, prepared
    return rows


@pytest.mark.parametrize(
    ("chunks", "start"),
    [
        ([], START),
        ([[ORIGIN, ORIGIN]], START),
        ([[MESSAGE]], START + SIZE),
        ([[MESSAGE, ORIGIN, ORIGIN]], START + SIZE),
        ([[ORIGIN, MESSAGE, ORIGIN], [ORIGIN]], START + 2 * SIZE),
        ([[ORIGIN], [ORIGIN, MESSAGE]], START + 3 * SIZE),
    ],
)
def test_the_run_begins_after_the_last_other_record(chunks: list[list[int]], start: int) -> None:
    run, end = OriginRun(), START + SIZE * sum(map(len, chunks))
    run.begin(START, end)
    at = START
    for prepared in chunks:
        run.add(rows_of(prepared, at))
        at += SIZE * len(prepared)
    assert run.scan_from(end) == start
    assert run.scan_from(end + SIZE) == end + SIZE, "the log continues after it"


@pytest.mark.parametrize(("size", "is_long"), [(RUN_BYTES_MAX, False), (RUN_BYTES_MAX + 1, True)])
def test_a_long_run_is_not_read_again(size: int, is_long: bool) -> None:
    run = OriginRun()
    run.begin(START, START + size)
    assert run.scan_from(START + size) == START + size * is_long
