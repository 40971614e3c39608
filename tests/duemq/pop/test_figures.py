"""Messages in flight, and counters of the revive topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duemq.pop import figures as module
from duemq.pop.checkpoints import Acknowledgement, PopCheckpoint
from duemq.pop.figures import PUT, REFUSED, PopFigures

STARTED_MS = 1_000
POP = PopCheckpoint(
    topic="T",
    group="g",
    queue_id=1,
    start_offset=5,
    pop_ms=STARTED_MS,
    invisible_ms=10,
    offsets=(5, 6, 7),
    broker_name="b",
)


def ack(*offsets: int, pop_ms: int = STARTED_MS) -> Acknowledgement:
    return Acknowledgement("T", "g", 1, 5, pop_ms, offsets, "b", 0)


def test_messages_are_in_flight_until_they_are_acknowledged_or_visible() -> None:
    figures = PopFigures(STARTED_MS)
    figures.on_put(POP, PUT)
    assert figures.in_flight("g", "T", 1) == 3
    figures.on_put(ack(5), PUT)
    assert figures.in_flight("g", "T", 1) == 2
    figures.on_settled(POP, 2)
    assert figures.in_flight("g", "T", 1) == 0
    figures.on_put(ack(6), PUT)
    assert figures.in_flight("g", "T", 1) == 0
    assert figures.in_flight("g", "T", 0) == 0


def test_pops_before_the_start_are_not_counted() -> None:
    figures = PopFigures(STARTED_MS)
    figures.on_put(POP, PUT)
    figures.on_put(ack(5, pop_ms=STARTED_MS - 1), PUT)
    figures.on_settled(replace(POP, pop_ms=STARTED_MS - 1), 3)
    assert figures.in_flight("g", "T", 1) == 3


def test_records_are_counted_by_type_and_status() -> None:
    figures = PopFigures(STARTED_MS)
    figures.on_put(POP, PUT)
    figures.on_put(POP, REFUSED)
    figures.on_put(ack(5), PUT)
    figures.on_read(POP, 3)
    assert dict(figures.puts) == {
        ("g", "T", "CK", "PUT_OK"): 1,
        ("g", "T", "CK", "UNKNOWN_ERROR"): 1,
        ("g", "T", "ACK", "PUT_OK"): 1,
    }
    assert dict(figures.reads) == {("g", "T", "3", "CK"): 1}
    assert figures.in_flight("g", "T", 1) == 2


def test_pops_of_a_retry_topic_count_for_its_topic() -> None:
    figures = PopFigures(STARTED_MS)
    figures.on_put(replace(POP, topic="%RETRY%g_T"), PUT)
    assert list(figures.pairs()) == [("g", "T")]
    assert figures.in_flight("g", "%RETRY%g_T", 1) == 3


def test_places_and_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACES_MAX", 1)
    monkeypatch.setattr(module, "PAIRS_MAX", 1)
    figures = PopFigures(STARTED_MS)
    for topic in ("T", "U", "T"):
        figures.on_put(replace(POP, topic=topic), PUT)
    assert list(figures.pairs()) == [("g", "T")]
    assert (figures.in_flight("g", "T", 1), figures.in_flight("g", "U", 1)) == (6, 0)
