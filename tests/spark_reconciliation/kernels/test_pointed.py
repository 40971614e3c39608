"""Due times of timers at given log offsets, compared with those of the timer store."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.layout import SCANNED, native_columns
from message_store.log.properties import decode_properties
from spark_reconciliation.kernels.pointed import UNUSUAL, exact_times
from tests.support.encoded_records import encode_record
from tests.support.written_logs import HOST, START_MS
from timer_store.enqueue.due_time import due_ms_of
from timer_store.layout import DUE_MS_MAX, TIMER_UNIT

BASE, BEFORE = 4_096, b"\xda" * 100
DUE_NAMES = "TIMER_DELIVER_MS", "DUEMQ_DUE_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
NAMES = st.sampled_from(["TIMER_OUT_MS", *DUE_NAMES, "TIMER_ROLL_TIMES", "TIMER_OUT_M", "KEYS", ""])
TIMES = st.one_of(
    st.integers(START_MS - 3, START_MS + 3).map(str),
    st.sampled_from(["", "-1", "0", "x", "1" * 19, str(DUE_MS_MAX), str(DUE_MS_MAX + 1)]),
)
USUAL = {
    "TIMER_DELIVER_MS": str(START_MS + 870),
    "TIMER_OUT_MS": str(START_MS),
    "REAL_TOPIC": "T",
}


def due_times(text: bytes, *, topic: str = TIMER_TOPIC, shift: int = 0, growth: int = 0) -> int:
    """Return the due time of a record with these properties, by the kernel.

    Args:
        shift: Bytes by which the log offset in the unit is wrong.
        growth: The same of the size.
    """
    offset = BASE + len(BEFORE)
    record = encode_record(
        topic=topic,
        queue_id=0,
        body=b"body",
        property_text=text,
        queue_offset=0,
        phys_offset=offset,
        born_ms=START_MS,
        born_host=HOST,
        store_ms=START_MS,
        store_host=HOST,
    )
    units = np.zeros(1, TIMER_UNIT)
    units["phys_offset"], units["record_size"] = offset + shift, len(record) + growth
    out = np.zeros(1, np.int64)
    data, name = (np.frombuffer(part, np.uint8) for part in (BEFORE + record, TIMER_TOPIC.encode()))
    exact_times(data, BASE, native_columns(units), name, np.zeros(1, SCANNED), out)
    return int(out[0])


def text_of(pairs: list[tuple[str, str]]) -> bytes:
    """Return encoded properties, with names that occur several times."""
    return b"".join(f"{name}\1{value}\2".encode() for name, value in pairs)


@given(st.lists(st.tuples(NAMES, TIMES), max_size=6), st.booleans())
def test_a_time_is_that_of_the_timer_store_or_unusual(
    pairs: list[tuple[str, str]], cut: bool
) -> None:
    text = text_of(pairs)
    text = text[:-1] if cut else text
    expected = due_ms_of(decode_properties(text), START_MS, 1_000)
    assert due_times(text) in (UNUSUAL, expected)


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "DUEMQ_DUE_MS"])
def test_timers_with_an_exact_time_are_usual(name: str) -> None:
    text = text_of([("UNIQ_KEY", "k"), *USUAL.items(), (name, str(START_MS + 7))])
    assert due_times(text) == START_MS + 7
    before_slot = text_of([*USUAL.items(), (name, str(START_MS - 5))])
    assert due_times(before_slot) == START_MS + 1


def test_times_beyond_the_last_due_time_are_unusual() -> None:
    for name in USUAL.keys() - {"REAL_TOPIC"}:
        last = DUE_MS_MAX - (name == "TIMER_OUT_MS")
        assert due_times(text_of(list((USUAL | {name: str(last)}).items()))) == DUE_MS_MAX
        assert due_times(text_of(list((USUAL | {name: str(last + 1)}).items()))) == UNUSUAL


def test_other_records_are_unusual() -> None:
    text = text_of(list(USUAL.items()))
    assert due_times(text) == START_MS + 870
    assert due_times(text, topic=SCHEDULE_TOPIC) == UNUSUAL
    for shift in (-BASE, -BASE - len(BEFORE) - 1, 1, 1 << 40):
        assert due_times(text, shift=shift) == UNUSUAL
    assert due_times(text, growth=1) == UNUSUAL
