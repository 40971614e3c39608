"""Reads of what is not there: refused, and never past the end of a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from duemq_common.errors import RecordUnreadable
from message_store import layout
from message_store.store import MessageStore
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK, open_store, put_one
from tests.support.topic_removal import remove_topic

TOP = (1 << 63) - 1
INT_MAX = (1 << 31) - 1
BODY_AT = 88  # of a record whose hosts are IPv4


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        for number in range(3):
            put_one(store, "T", 0, b"%d" % number)
        yield store


def with_first(store: MessageStore, unit: tuple[int, int, int, int]) -> npt.NDArray[np.void]:
    """Return the three units of the queue with another one in their middle."""
    units = store.units("T", 0, 0, 10)
    return np.concatenate([units[:1], np.array([unit], layout.UNIT), units[1:]])


@pytest.mark.parametrize(
    "unit",
    [
        (TOP - 10, 0, 100, 0),
        (TOP, 0, INT_MAX, 0),
        (-1, 0, 100, 0),
        (-(1 << 63), 0, INT_MAX, 0),
        (0, 0, INT_MAX, 0),
        (0, 0, 0, 0),
        (0, 0, -5, 0),
        (65_530, 0, 100, 0),
        (60_000, 0, 100, 0),
    ],
)
def test_a_unit_that_points_nowhere_is_refused(
    store: MessageStore, unit: tuple[int, int, int, int]
) -> None:
    with pytest.raises(RecordUnreadable):
        store.gather("T", 0, 0, with_first(store, unit))
    with pytest.raises(RecordUnreadable):
        store.record_bytes(unit[0], unit[2] if unit[2] > 0 else 1 << 40)


@pytest.mark.parametrize("at", [-1, 1, 91, 60_000, 65_536, TOP, -(1 << 63)])
def test_an_offset_at_which_no_record_starts_is_refused(store: MessageStore, at: int) -> None:
    with pytest.raises(RecordUnreadable):
        store.read_record(at)
    assert store.store_ms(at) == -1


def test_no_units_are_no_bytes(store: MessageStore) -> None:
    assert store.gather("T", 0, 0, np.empty(0, layout.UNIT)) == b""


def test_records_come_back_to_back(store: MessageStore) -> None:
    units = store.units("T", 0, 0, 10)
    expected = b"".join(
        bytes(store.record_bytes(int(u["phys_offset"]), int(u["size"]))) for u in units
    )
    assert store.gather("T", 0, 0, units) == expected


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "count"),
    [
        ("T", 0, 3, 1),
        ("T", 0, -1, 1),
        ("T", 0, 0, 0),
        ("T", 1, 0, 1),
        ("X", 0, 0, 1),
        ("T", -1, 0, 1),
        ("T", 0, TOP, 1),
    ],
)
def test_units_out_of_range_are_none(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int
) -> None:
    assert store.units(topic, queue_id, offset, count).size == 0
    assert store.queue_bounds("X", 0) == (0, 0)


def planted(store: MessageStore, topic: str = "T", queue_offset: int = 0) -> int:
    """Put a message whose body looks like a record of `topic`; return where that seems to start."""
    at = store.max_offset + BODY_AT
    body = encode_record(
        topic=topic,
        queue_id=0,
        body=b"boo",
        property_text=b"",
        queue_offset=queue_offset,
        phys_offset=at,
        born_ms=1,
        born_host=LOOPBACK,
        store_ms=1,
        store_host=LOOPBACK,
    )
    put_one(store, "T", 0, body)
    return at


@pytest.mark.finding("A4")
@pytest.mark.parametrize(("topic", "queue_offset"), [("T", 0), ("T", 3), ("T", 99), ("other", 0)])
def test_a_record_inside_a_body_is_no_message(
    store: MessageStore, topic: str, queue_offset: int
) -> None:
    at = planted(store, topic, queue_offset)
    assert store.read_record(at).body == b"boo"  # its bytes have the form of a record
    assert not store.is_queued(at)
    with pytest.raises(RecordUnreadable, match="no consume queue"):
        store.read_queued(at)


@pytest.mark.finding("A4")
def test_a_record_that_its_queue_points_at_is_a_message(store: MessageStore) -> None:
    offsets = store.units("T", 0, 0, 10)["phys_offset"]
    assert [store.read_queued(at).body for at in offsets.tolist()] == [b"0", b"1", b"2"]
    inside = planted(store)
    for at in (-1, 1, inside, store.max_offset, TOP):
        assert not store.is_queued(at)


@pytest.mark.finding("A4")
def test_a_record_of_a_deleted_topic_is_no_message_any_more(store: MessageStore) -> None:
    remove_topic(store, "T")
    assert not store.is_queued(0)


def test_log_offsets_are_divided_by_file(tmp_path: Path) -> None:
    with open_store(tmp_path, commitlog_file_bytes=4_096) as store:
        while len(store.log.files) < 5:
            put_one(store, "T", body=bytes(1_000))
        store.log.detach_first().erase()
        end = store.max_offset
        ranked = np.array([-5, 0, 4_095, 4_096, 4_097, 8_191, 12_288, end - 1, end, TOP])
        found = [(file.base, first, last) for file, first, last in store.files_of(ranked)]
        assert found == [(4_096, 3, 6), (12_288, 6, 7), (16_384, 7, 8)]
        assert list(store.files_of(ranked[:0])) == []


def test_records_of_a_file_that_is_removed_meanwhile_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal by the event loop between two steps of a thread that reads."""
    with open_store(tmp_path, commitlog_file_bytes=4_096) as store:
        while len(store.log.files) < 3:
            put_one(store, "T", body=b"x" * 1_000)
        find_file = store.log.find_file

        def removing(offset: int) -> object:
            if store.log.files[0].base == 0:
                store.log.detach_first().erase()
            return find_file(offset)

        monkeypatch.setattr(store.log, "find_file", removing)
        assert list(store.indexes_by_file(np.array([100, 50]))) == []
        [(file, indexes)] = store.indexes_by_file(np.array([4_200, 100]))
        assert (file.base, indexes.tolist()) == (4_096, [0])
