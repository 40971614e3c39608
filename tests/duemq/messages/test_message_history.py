"""History of a message from its records: groups, events, state."""

from __future__ import annotations

import pytest

from delayed_delivery.pending import Verdict
from duemq.messages.message_history import (
    HistoryEvent,
    HistoryRecord,
    HistoryState,
    chains,
    event_of,
    history_of,
)
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.properties import encode_properties
from message_store.log.record import Record

pytestmark = pytest.mark.finding("B5")


def entry(
    at: int,
    topic: str,
    *,
    origin: int | None = None,
    due_ms: int | None = None,
    verdict: Verdict = Verdict.UNKNOWN,
    born_ms: int = 1,
    **extra: str,
) -> HistoryRecord:
    """Return a record at log offset and store time `at`."""
    properties = {"UNIQ_KEY": "U"} | ({"REAL_TOPIC": "T"} if due_ms is not None else {}) | extra
    record = Record(
        total_size=100,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        phys_offset=at,
        sys_flag=0,
        born_ms=born_ms,
        born_host=(b"\x7f\0\0\1", 1),
        store_ms=at,
        store_host=(b"\x7f\0\0\1", 1),
        reconsume_times=0,
        prepared_offset=0 if origin is None else -origin - 1,
        body=b"body",
        topic=topic,
        property_text=encode_properties({k: v for k, v in properties.items() if v}),
    )
    return HistoryRecord(record, 4, due_ms, verdict)


TIMER = entry(100, TIMER_TOPIC, due_ms=900, verdict=Verdict.DELIVERED)


@pytest.mark.parametrize(
    ("records", "events", "state", "due_ms"),
    [
        pytest.param(
            [TIMER, entry(950, "T")],
            [HistoryEvent.SCHEDULED, HistoryEvent.DELIVERED],
            HistoryState.DELIVERED,
            900,
            id="apache's delivery names no origin",
        ),
        pytest.param(
            [TIMER, entry(300, TIMER_TOPIC, origin=100, due_ms=900, verdict=Verdict.DONE)],
            [HistoryEvent.SCHEDULED, HistoryEvent.PUT_AGAIN],
            HistoryState.PENDING,
            900,
            id="a copy with equal due time",
        ),
        pytest.param(
            [
                TIMER,
                entry(300, TIMER_TOPIC, due_ms=900, verdict=Verdict.DONE, TIMER_ROLL_TIMES="1"),
            ],
            [HistoryEvent.SCHEDULED, HistoryEvent.PUT_AGAIN],
            HistoryState.PENDING,
            900,
            id="apache's roll",
        ),
        pytest.param(
            [
                entry(100, TIMER_TOPIC, due_ms=900, verdict=Verdict.CANCELLED),
                entry(300, TIMER_TOPIC, due_ms=900, TIMER_DEL_UNIQKEY="T+U"),
            ],
            [HistoryEvent.SCHEDULED, HistoryEvent.CANCEL_REQUESTED],
            HistoryState.CANCELLED,
            900,
            id="a client's marker",
        ),
        pytest.param(
            [TIMER],
            [HistoryEvent.SCHEDULED],
            HistoryState.DELIVERED,
            900,
            id="the delivery was removed",
        ),
        pytest.param(
            [entry(950, "T", origin=100, TIMER_DELIVER_MS="900")],
            [HistoryEvent.DELIVERED],
            HistoryState.DELIVERED,
            900,
            id="the scheduled record was removed",
        ),
        pytest.param(
            [
                entry(100, "T"),
                entry(200, SCHEDULE_TOPIC, due_ms=700, verdict=Verdict.DONE, REAL_TOPIC="%RETRY%g"),
            ],
            [HistoryEvent.STORED, HistoryEvent.SCHEDULED],
            HistoryState.PENDING,
            700,
            id="sent back by a consumer",
        ),
        pytest.param(
            [entry(100, TIMER_TOPIC, due_ms=900)],
            [HistoryEvent.SCHEDULED],
            HistoryState.UNKNOWN,
            900,
            id="a timer of a broker without a timer store",
        ),
    ],
)
def test_events_state_and_due_time_of_records(
    records: list[HistoryRecord], events: list[HistoryEvent], state: HistoryState, due_ms: int
) -> None:
    [chain] = chains(records)
    by_offset = {one.log_offset: one for one in chain}
    assert [event_of(one, by_offset) for one in chain] == events
    history = history_of(chain)
    assert (history.state, history.due_ms) == (state, due_ms)


def test_two_sends_with_one_key_are_two_messages() -> None:
    assert [len(chain) for chain in chains([entry(1, "T"), entry(2, "T", born_ms=2)])] == [
        1,
        1,
    ]


def test_records_without_a_key_are_linked_by_origin() -> None:
    records = [
        entry(1, SCHEDULE_TOPIC, due_ms=5, UNIQ_KEY=""),
        entry(2, "T", UNIQ_KEY=""),
        entry(6, "T", origin=1, UNIQ_KEY=""),
    ]
    assert [[one.log_offset for one in chain] for chain in chains(records)] == [[2], [1, 6]]
