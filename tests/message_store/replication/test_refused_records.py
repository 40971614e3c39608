"""Records of a master that are not as expected: refused once, then its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import ReplicationFault
from message_store.store import MessageStore
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK, open_store, put_one, records_of

NOW_MS = FakeClock().now_ms()


def log_of(headers: list[dict[str, Any]]) -> bytes:
    """Return a log with one record for each header; the defaults continue queue 0 of T."""
    data = b""
    for number, header in enumerate(headers):
        fields = {"topic": "T", "queue_id": 0, "queue_offset": number, "store_ms": NOW_MS}
        data += encode_record(
            body=b"%d" % number,
            property_text=b"",
            phys_offset=len(data),
            born_ms=NOW_MS,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
            **(fields | header),
        )
    return data


def append(store: MessageStore, data: bytes) -> None:
    """Send the log from the store's end on, as a master does on a new connection."""
    at = store.max_offset
    taken = store.append_raw(at, np.frombuffer(data[at:], np.uint8))
    assert at + taken == len(data)


def bodies(store: MessageStore, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records_of(store, "T", queue_id)]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"queue_id": -1}, "impossible queue"),
        ({"queue_id": 65_536}, "impossible queue"),
        ({"queue_offset": -1}, "impossible queue"),
        ({"queue_offset": 1 << 40}, "impossible queue"),
        ({"topic": "a/b"}, "no valid topic"),
        ({"topic": ".."}, "no valid topic"),
        ({"queue_offset": 2}, "queue 0 of T ends at 3"),
    ],
    ids=str,
)
def test_a_record_that_fits_no_queue_is_refused_once_and_then_in_none(
    header: dict[str, Any], text: str, tmp_path: Path
) -> None:
    good: list[dict[str, Any]] = [{}, {}, {}]
    data = log_of([*good, header, {"queue_offset": 3}, {"queue_offset": 4}])
    notices: list[str] = []
    with open_store(tmp_path) as store:
        store.notice = notices.append
        with pytest.raises(ReplicationFault, match=text):
            append(store, data)
        assert store.max_offset == len(log_of(good))
        append(store, data)
        assert bodies(store) == [b"0", b"1", b"2", b"4", b"5"]
        assert sum("implausible record" in notice for notice in notices) == 1
        assert put_one(store, "T", 0, b"next")["queue_offset"] == 5
    with open_store(tmp_path) as store:
        assert bodies(store) == [b"0", b"1", b"2", b"4", b"5", b"next"]
    assert sorted(path.name for path in (tmp_path / "consumequeue").iterdir()) == ["T"]


def test_a_body_that_is_damaged_in_the_masters_log_is_kept(tmp_path: Path) -> None:
    data = bytearray(log_of([{}, {}, {}]))
    size = len(data) // 3
    data[size + 88] ^= 1
    with open_store(tmp_path) as store:
        with pytest.raises(ReplicationFault, match="does not match its CRC"):
            append(store, bytes(data))
        assert store.max_offset == size
        append(store, bytes(data))
        assert store.queue_bounds("T", 0) == (0, 3)


def test_a_gap_that_lost_messages_explain_is_no_fault(tmp_path: Path) -> None:
    filler = {"topic": "DUEMQ_DAMAGED_BYTES", "queue_offset": 0, "sys_flag": 12}
    with open_store(tmp_path) as store:
        append(store, log_of([{}, {}, filler, filler, {"queue_offset": 4}, {"queue_offset": 5}]))
        assert bodies(store)[:2] == [b"0", b"1"]
        assert store.queue_bounds("T", 0) == (0, 6)
        assert store.units("T", 0, 4, 2)["phys_offset"].size == 2
    wide = [{"topic": "U", "queue_offset": number} for number in range(12)]
    data = log_of([*wide, {"queue_offset": 0}, {"queue_offset": 1}, {"queue_offset": 9}])
    with open_store(tmp_path / "other") as store:
        with pytest.raises(ReplicationFault, match="queue 0 of T ends at 2"):
            append(store, data)
        append(store, data)
        assert bodies(store) == [b"12", b"13"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_topic_that_the_master_deleted_begins_at_0_again(tmp_path: Path, restart: bool) -> None:
    old = [{}, {}, {"queue_id": 1, "queue_offset": 0}, {"queue_offset": 2}]
    new = [{"queue_id": 1, "queue_offset": 0}, {"queue_offset": 0}, {"queue_offset": 1}]
    data = log_of([*old, *new])
    with open_store(tmp_path) as store:
        restarted: list[str] = []
        store.raw.restarted.append(lambda name, _: restarted.append(name))
        with pytest.raises(ReplicationFault, match="queue 1 of T ends at 1"):
            append(store, data)
        assert restarted == []
        append(store, data)
        assert restarted == ["T"]
        if not restart:
            assert (bodies(store), bodies(store, 1)) == ([b"5", b"6"], [b"4"])
    with open_store(tmp_path) as store:
        assert (bodies(store), bodies(store, 1)) == ([b"5", b"6"], [b"4"])
        assert put_one(store, "T", 1)["queue_offset"] == 1


@pytest.mark.parametrize("restart", [False, True])
def test_messages_of_a_topic_that_was_created_again_with_more_queues_are_kept(
    tmp_path: Path, restart: bool
) -> None:
    old = [{}, {}, {"queue_id": 1, "queue_offset": 0}, {"queue_offset": 2}]
    new = [{"queue_id": 2, "queue_offset": 0}, {"queue_id": 2, "queue_offset": 1}]
    new += [{"queue_offset": 0}, {"queue_id": 2, "queue_offset": 2}]
    data = log_of([*old, *new])
    with open_store(tmp_path) as store:
        with pytest.raises(ReplicationFault, match="queue 0 of T ends at 3"):
            append(store, data)
        append(store, data)
        if not restart:
            assert [bodies(store, queue_id) for queue_id in range(3)] == [
                [b"6"],
                [],
                [b"4", b"5", b"7"],
            ]
    if restart:
        with open_store(tmp_path) as store:
            assert [bodies(store, queue_id) for queue_id in range(3)] == [
                [b"6"],
                [],
                [b"4", b"5", b"7"],
            ]


def test_a_queue_without_records_begins_at_0_again_and_the_others_are_kept(tmp_path: Path) -> None:
    """Retention has removed the records of the deleted topic, so its end is not known."""
    old: list[dict[str, Any]] = [{}, {}]
    new = [{"queue_id": 2, "queue_offset": 0}, {"queue_id": 2, "queue_offset": 1}]
    data = log_of([*old, *new, {"queue_offset": 0}, {"queue_id": 2, "queue_offset": 2}])
    with open_store(tmp_path) as store:
        append(store, log_of(old))
        store.queues.correct_min(store.max_offset)
        restarted: list[tuple[str, int | None]] = []
        store.raw.restarted.append(lambda name, queue_id: restarted.append((name, queue_id)))
        with pytest.raises(ReplicationFault, match="queue 0 of T ends at 2"):
            append(store, data)
        append(store, data)
        assert [bodies(store, 0), bodies(store, 2)] == [[b"4"], [b"2", b"3", b"5"]]
        assert restarted == [("T", 0)]
