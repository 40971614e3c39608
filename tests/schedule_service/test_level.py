"""State of one level: deliveries in flight, statistics."""

from __future__ import annotations

import pytest

from schedule_service.cursor import Segment
from schedule_service.level import (
    MOVES,
    Event,
    InFlight,
    InFlightTable,
    State,
    resend_pause_ms,
)

LEGAL = {
    ("RUNNING", "DURABLE"): "SUCCESS",
    ("RUNNING", "REFUSED"): "EXCEPTION",
    ("RUNNING", "ILLEGAL"): "SKIP",
    ("EXCEPTION", "RESENT"): "RUNNING",
    ("EXCEPTION", "REFUSED"): "EXCEPTION",
    ("EXCEPTION", "ILLEGAL"): "SKIP",
    ("SKIP", "REFUSED"): "SKIP",
    ("SKIP", "QUARANTINED"): "RUNNING",
}


def in_flight(
    first: int = 0, count: int = 1, state: State = State.RUNNING, log_end: int = 0
) -> InFlight:
    return InFlight(Segment(0, 0, 100), first, count, state, log_end)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_every_pair(state: State, event: Event) -> None:
    one = in_flight(state=state)
    expected = LEGAL.get((state.name, event.name))
    if expected is None:
        with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
            one.move(event)
        return
    one.move(event)
    assert one.state.name == expected
    assert (state, event) in MOVES


@pytest.mark.parametrize(
    ("failures", "pause_ms"), [(0, 0), (1, 100), (3, 300), (600, 60_000), (10**6, 60_000)]
)
def test_pauses_grow_to_a_minute(failures: int, pause_ms: int) -> None:
    assert resend_pause_ms(failures) == pause_ms


def test_deliveries_are_removed_in_order() -> None:
    table = InFlightTable()
    for number in range(3):
        table.add(in_flight(number, 1, log_end=100 - number))
    assert (table.records, table.log_end) == (3, 100)
    table.acknowledge(99)
    assert [one.state.name for one in table] == ["RUNNING", "SUCCESS", "SUCCESS"]
    table.acknowledge(100)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("failures", "flights", "room"),
    [(None, 0, 10), (None, 10, 0), (None, 12, 0), (1, 3, 7), (3, 3, 7), (4, 3, 0)],
)
def test_flow_control_and_blocking(failures: int | None, flights: int, room: int) -> None:
    table = InFlightTable()
    if flights:
        table.add(in_flight(count=flights))
    if failures is not None:
        for one in table:
            one.move(Event.REFUSED)
            one.failures = failures
    assert table.room(records_max=10, failures_max=3) == room


def test_a_delivery_is_split_where_the_store_stopped() -> None:
    table = InFlightTable()
    one = in_flight(5, 10)
    table.add(one)
    table.add(in_flight(15, 2))
    rest = table.split(one, 4)
    assert [(f.first, f.count) for f in table] == [(5, 4), (9, 6), (15, 2)]
    rest.refused(1_000)
    assert (rest.state, rest.failures, rest.retry_ms) == (State.EXCEPTION, 1, 1_100)
    assert table.failing is rest
