"""Ownership records as bytes: malformed ones are skipped and logged in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delayed_delivery import ownership
from delayed_delivery.ownership import Return, Route, StateRecord, Transfer
from delayed_delivery.ownership_projection import Ownership
from delayed_delivery.quarantine import NO_HOST
from duemq_common.topics import OWNERSHIP_TOPIC
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.stores import LOOPBACK, open_store

HANDOVER = Transfer(
    migration="m",
    level=3,
    first=5,
    end=9,
    excluded=((6, 7), (8, 9)),
    count=2,
    checksum=(1 << 64) - 1,
    promised={5: 99},
)
GIVEBACK = Return(migration="m", level=3, first=5, end=9, pending=((5, 6),), count=1, gone=1)
ROUTE = Route(migration="m", level=3, on=True, fence=4, timer_fence=7, rules={"T": 5_000})
STATE = StateRecord(migration="m", level=3, source="planned", target="routing", operator="anna")


@pytest.mark.parametrize(
    "record", [HANDOVER, GIVEBACK, ROUTE, STATE], ids=lambda m: type(m).__name__
)
def test_records_round_trip(record: Any) -> None:
    assert ownership.decode(ownership.encode(record)) == record


MALFORMED = {
    "level is a list": (ROUTE, {"level": [1]}),
    "level is a text": (ROUTE, {"level": "1"}),
    "level is a truth": (ROUTE, {"level": True}),
    "level 0": (ROUTE, {"level": 0}),
    "level beyond every queue": (ROUTE, {"level": 1 << 40}),
    "level is no whole number": (ROUTE, {"level": 1.5}),
    "on is a number": (ROUTE, {"on": 1}),
    "a rule without a number": (ROUTE, {"rules": {"T": "5"}}),
    "rules are a list": (ROUTE, {"rules": [1]}),
    "migration is a list": (STATE, {"migration": []}),
    "migration is long": (STATE, {"migration": "x" * 5_000}),
    "a state that there is not": (STATE, {"target": "gone"}),
    "a state that is a list": (STATE, {"target": []}),
    "who is a number": (STATE, {"who": 5}),
    "ends before it begins": (HANDOVER, {"first": 10}),
    "first below 0": (HANDOVER, {"first": -1}),
    "an end beyond all offsets": (HANDOVER, {"end": 1 << 63}),
    "excluded overlaps": (HANDOVER, {"excluded": [[5, 7], [6, 8]]}),
    "excluded descends": (HANDOVER, {"excluded": [[7, 8], [5, 6]]}),
    "excluded lies outside": (HANDOVER, {"excluded": [[3, 6]]}),
    "excluded of three": (HANDOVER, {"excluded": [[3, 6, 7]]}),
    "excluded of texts": (HANDOVER, {"excluded": [["5", "6"]]}),
    "promised to no number": (HANDOVER, {"promised": {"5": None}}),
    "promised of no number": (HANDOVER, {"promised": {"x": 5}}),
    "promised is a list": (HANDOVER, {"promised": [5]}),
    "count below 0": (HANDOVER, {"count": -1}),
    "checksum of 65 bits": (GIVEBACK, {"checksum": 1 << 64}),
    "pending is a number": (GIVEBACK, {"pending": 5}),
    "pending lies outside": (GIVEBACK, {"pending": [[8, 10]]}),
    "a field too many": (GIVEBACK, {"more": 1}),
    "a kind that there is not": (GIVEBACK, {"kind": "x"}),
    "a kind that is a list": (GIVEBACK, {"kind": [1]}),
}


@pytest.mark.finding("A2")
@pytest.mark.parametrize(("record", "changes"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_field_is_no_record(record: Any, changes: dict[str, Any]) -> None:
    body = json.dumps(json.loads(ownership.encode(record)) | changes).encode()
    with pytest.raises(ValueError, match=r"record|malformed|literal"):
        ownership.decode(body)


@pytest.mark.finding("A2")
@pytest.mark.parametrize(
    "body", [b"", b"junk", b"\xff", b"[]", b"5", b"null", b"{}", b"[" * 100_000, b"9" * 10_000]
)
def test_a_body_that_is_no_object_is_no_record(body: bytes) -> None:
    with pytest.raises(ValueError):
        ownership.decode(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
FIELDS = sorted({name for kind in ownership.KINDS.values() for name in kind.__slots__})


@pytest.mark.finding("A2")
@given(
    st.sampled_from([HANDOVER, GIVEBACK, ROUTE, STATE]),
    st.dictionaries(st.sampled_from(["kind", *FIELDS]), json_values, max_size=4),
)
def test_any_field_values_give_a_record_or_a_value_error(
    record: Any, changes: dict[str, list[Any] | dict[str, Any] | None]
) -> None:
    body = json.dumps(json.loads(ownership.encode(record)) | changes).encode()
    try:
        found = ownership.decode(body)
    except ValueError:
        return
    assert ownership.decode(ownership.encode(found)) == found
    Ownership().apply(ownership.JournalEntry(0, 0, 0, found))


def put_record(store: MessageStore, body: bytes, born_host: tuple[bytes, int] = NO_HOST) -> None:
    batch = PutBatch(1)
    batch.add(
        topic_index=store.topics.add(OWNERSHIP_TOPIC),
        queue_id=0,
        body=body,
        properties=b"",
        born_ms=1,
        born_host=born_host,
        store_host=NO_HOST,
    )
    store.put(batch)


@pytest.mark.finding("A2")
def test_a_record_sent_by_a_client_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        put_record(store, ownership.encode(HANDOVER), LOOPBACK)
        put_record(store, ownership.encode(ROUTE))
        assert [found.record for found in ownership.read(store)] == [ROUTE]
    assert "a client wrote it: 127.0.0.1, port 10911" in caplog.text


@pytest.mark.finding("E10")
def test_malformed_records_are_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        for number in range(2_500):
            put_record(store, b"junk" if number != 1_700 else ownership.encode(ROUTE))
        assert [found.queue_offset for found in ownership.read(store)] == [1_700]
        (logged,) = caplog.messages
        assert "2499 records from queue offset 0 on" in logged
        assert len(logged) < 1_000
        assert [found.record for found in ownership.read(store, quiet=True)] == [ROUTE]
        assert len(caplog.messages) == 1


def test_each_record_is_read_after_units_that_retention_has_just_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path) as store:
        for _ in range(3):
            put_record(store, ownership.encode(ROUTE))
        units = store.units

        def retained_units(topic: str, queue_id: int, first: int, count: int) -> Any:
            return units(topic, queue_id, first, count if first else 0)

        monkeypatch.setattr(store, "units", retained_units)
        assert [entry.queue_offset for entry in ownership.read(store)] == [1, 2]


def test_a_return_of_everything_is_a_record() -> None:
    record = replace(GIVEBACK, pending=((5, 9),))
    assert ownership.decode(ownership.encode(record)) == record


def test_a_state_record_names_its_operator_as_earlier_versions_do() -> None:
    body = ownership.encode(STATE)
    assert json.loads(body)["who"] == STATE.operator == "anna"
    assert ownership.decode(body) == STATE
