"""Due time of a message: precedence of properties, Apache's copies, messages that are no timers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timer_store.kernels.naive import out_ms_of
from timer_store.enqueue.due_time import due_ms_of, number_of
from timer_store.layout import DUE_MS_MAX

STORED = 1_700_000_000_500
OUT = {"TIMER_OUT_MS": "1700000010000"}


@pytest.mark.parametrize(
    ("rule", "properties", "due_ms"),
    [
        ("seconds count from the store time", {"TIMER_DELAY_SEC": "10"}, STORED + 10_000),
        ("so do ms", {"TIMER_DELAY_MS": "9999"}, STORED + 9_999),
        (
            "an absolute time is kept to the ms",
            {"TIMER_DELIVER_MS": "1700000010777"},
            1_700_000_010_777,
        ),
        (
            "seconds go before ms",
            {"TIMER_DELAY_MS": "99999", "TIMER_DELAY_SEC": "10"},
            STORED + 10_000,
        ),
        (
            "ms go before the absolute time",
            {"TIMER_DELIVER_MS": "1700000099999", "TIMER_DELAY_MS": "9999"},
            STORED + 9_999,
        ),
        (
            "the exact time goes before all",
            {"DUEMQ_DUE_MS": "1700000010123", "TIMER_DELAY_SEC": "77"},
            1_700_000_010_123,
        ),
        ("nothing but the slot: its end", {}, 1_700_000_011_000),
        ("never before the slot is over", {"TIMER_DELIVER_MS": "5"}, 1_700_000_010_001),
        (
            "a delay that Apache rolled has lost its start",
            {"TIMER_DELAY_SEC": "10", "TIMER_ROLL_TIMES": "1"},
            1_700_000_011_000,
        ),
        (
            "a delay that the timeline in RocksDB rolled has lost it, too",
            {"TIMER_DELAY_SEC": "10", "TIMER_ROLL_LABEL": "R"},
            1_700_000_011_000,
        ),
        (
            "an absolute time that Apache rolled has not",
            {"TIMER_DELIVER_MS": "1700000010777", "TIMER_ROLL_TIMES": "1"},
            1_700_000_010_777,
        ),
        (
            "no number: the slot decides",
            {"TIMER_DELAY_SEC": "soon", "TIMER_DELAY_MS": "9999"},
            1_700_000_011_000,
        ),
        ("too far to be a number", {"TIMER_DELAY_SEC": "999999999999999999"}, None),
        ("no slot, no timer", {"TIMER_OUT_MS": ""}, None),
        ("a slot that is no number", {"TIMER_OUT_MS": "x"}, None),
        ("a negative slot", {"TIMER_OUT_MS": "-1"}, None),
    ],
)
def test_due(rule: str, properties: dict[str, str], due_ms: int | None) -> None:
    found = {name: value for name, value in (OUT | properties).items() if value}
    assert due_ms_of(found, STORED, 1_000) == due_ms, rule


@given(st.integers(1, DUE_MS_MAX), st.sampled_from([100, 200, 500, 1_000]))
def test_a_slot_covers_the_due_time(due_ms: int, precision_ms: int) -> None:
    out_ms = out_ms_of(due_ms, precision_ms)
    assert out_ms % precision_ms == 0
    assert out_ms < due_ms <= out_ms + precision_ms


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("9" * 18, 10**18 - 1),
        ("9" * 19, None),
        ("", None),
        (None, None),
        ("1.0", None),
        (" 1", None),
        ("٣", None),
        ("-", None),
    ],
)
def test_numbers(text: str | None, number: int | None) -> None:
    assert number_of(text) == number
