"""Recovery of logs with impossible headers. Torn ends and lost queues: `test_failures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore
from message_store.layout import UNIT_BYTES
from message_store.store import MessageStore
from tests.message_store.test_store import bodies
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK, crash, open_store, put_one, small_config

FILE_BYTES = 65_536


def write_log(root: Path, headers: list[dict[str, Any]]) -> None:
    """Write a log file with one record for each header."""
    data = b""
    for number, header in enumerate(headers):
        fields = {"topic": "T", "queue_id": 0, "queue_offset": number} | header
        data += encode_record(
            body=b"%d" % number,
            property_text=b"",
            phys_offset=len(data),
            born_ms=1,
            store_ms=1_000 + number,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
            **fields,
        )
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))


@pytest.mark.parametrize(
    "header",
    [
        {"queue_id": -1},
        {"queue_id": 65_536},
        {"queue_id": (1 << 31) - 1},
        {"queue_offset": -1},
        {"queue_offset": 1 << 40},
        {"queue_offset": (1 << 63) - 1},
        {"topic": "../../outside"},
        {"topic": "a/b"},
        {"topic": ".."},
        {"topic": "nul\0"},
        {"topic": "x" * 256},
    ],
    ids=str,
)
def test_an_impossible_header_gives_no_unit(tmp_path: Path, header: dict[str, int | str]) -> None:
    root = tmp_path / "store"
    write_log(root, [{}, header, {"queue_offset": 1}])
    notices: list[str] = []
    with MessageStore(small_config(root), FakeClock(), notice=notices.append) as store:
        assert bodies(store, "T") == [b"0", b"2"]
        assert store.recovered.records == 3
        assert len(store.recovered.without_queue) == 1
        assert put_one(store, "T", 0, b"next")["queue_offset"] == 2
    assert sum("it is in no queue" in notice for notice in notices) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]
    assert {p.name for p in (root / "consumequeue").iterdir()} == {"T"}


def test_many_such_records_are_reported_once(tmp_path: Path) -> None:
    write_log(tmp_path, [{"queue_id": -1}] * 100)
    notices: list[str] = []
    with MessageStore(small_config(tmp_path), FakeClock(), notice=notices.append) as store:
        assert len(store.recovered.without_queue) == 100
    assert len(notices) == 21
    assert "80 more records" in notices[-1]


def test_a_last_record_with_a_wrong_offset_is_ignored(tmp_path: Path) -> None:
    write_log(tmp_path, [{}, {}, {}])
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[2 * data[3] + 35] ^= 1  # the offset in the third record
    path.write_bytes(data)
    with open_store(tmp_path) as store:
        assert bodies(store, "T") == [b"0", b"1"]
    assert len(list((tmp_path / "truncated").iterdir())) == 1


def test_a_failed_start_leaves_no_trace(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T", 0, b"one")
    stray = tmp_path / "index" / "stray"
    stray.write_bytes(b"x")
    for _ in range(3):
        with pytest.raises(CorruptStore, match="stray"), open_store(tmp_path):
            pass
        assert not (tmp_path / "abort").exists()
    stray.unlink()
    with open_store(tmp_path) as store:
        assert bodies(store, "T") == [b"one"]


def test_opening_twice_without_a_message_keeps_the_checkpoint(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        expected = put_one(store, "T")["store_ms"]
    for _ in range(2):
        with open_store(tmp_path, clock) as store:
            assert store.checkpoint.physic_ms == expected
            assert store.last_record == 0
    clock.advance(-400)
    with open_store(tmp_path, clock) as store:
        assert (
            put_one(store, "T")["store_ms"] == expected
        )  # the clock stands still, also across a restart


@pytest.mark.parametrize("gone", [0, 1])
def test_a_missing_queue_file_between_others_is_reported(tmp_path: Path, gone: int) -> None:
    with open_store(tmp_path) as store:
        for number in range(120):
            put_one(store, "T", 0, b"%d" % number)
    paths = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    assert len(paths) == 3
    paths[1].unlink()
    if gone:
        paths[1].write_bytes(b"short")
    with (
        pytest.raises(CorruptStore, match=r"remove .*T/0: it is rebuilt|Queue is 1000"),
        open_store(tmp_path),
    ):
        pass
    for path in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    with open_store(tmp_path) as store:
        assert bodies(store, "T") == [b"%d" % number for number in range(120)]


@pytest.mark.parametrize("torn", [(2,), (2, 3)])
def test_damage_at_the_start_of_a_file_loses_no_later_file(
    tmp_path: Path, torn: tuple[int, ...]
) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        for number in range(500):
            clock.advance(1_000)
            put_one(store, "T", 0, b"%d" % number + b"x" * 1_000)
        count = len(store.log.files)
    assert count > 6
    files = sorted((tmp_path / "commitlog").iterdir())
    for number in torn:
        files[number].write_bytes(bytes(files[number].stat().st_size))
    (tmp_path / "config" / "duemq.mark").unlink()
    (tmp_path / "abort").write_text("1")  # left by Apache
    with open_store(tmp_path, clock) as store:
        assert len(store.log.files) == count
        assert store.queue_bounds("T", 0)[1] == 500
        last = store.units("T", 0, 499, 1)[0]
        assert store.read_record(int(last["phys_offset"])).body.startswith(b"499x")


@pytest.mark.parametrize("bit", [12, 20, 40])
def test_a_last_unit_that_points_behind_the_log_is_written_again(tmp_path: Path, bit: int) -> None:
    """A flipped bit of its log offset: the record is before the start of the walk."""
    with open_store(tmp_path) as store:
        for number in range(3):
            put_one(store, "T", 0, b"%d" % number)
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    offset = int.from_bytes(data[40:48], "big")
    assert not offset >> bit & 1
    data[40:48] = (offset | 1 << bit).to_bytes(8, "big")
    path.write_bytes(data)
    notices: list[str] = []
    with MessageStore(small_config(tmp_path), FakeClock(), notice=notices.append) as store:
        assert bodies(store, "T", 0) == [b"0", b"1", b"2"]
    assert any("all queues are written again" in text for text in notices)


def lose_units(root: Path, topic: str, first: int) -> None:
    """Zero the units of a queue from a queue offset on, as a disk that loses synced bytes."""
    path = root / "consumequeue" / topic / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(first * UNIT_BYTES)
        file.write(bytes(path.stat().st_size - first * UNIT_BYTES))


def killed_after_mark(root: Path, later: str) -> list[bytes]:
    """Leave a killed store whose mark covers 10 messages of A; return the bodies of A.

    Args:
        later: Topics of the messages after the mark.
    """
    store = open_store(root, flush_commitlog_interval_ms=100_000_000)
    store.__enter__()
    for number in range(10):
        row = put_one(store, "A", 0, b"%d" % number)
    for number, topic in enumerate(later, 10):
        put_one(store, topic, 0, b"%d" % number)
    expected = bodies(store, "A")
    start = int(row["phys_offset"])
    store.mark.update(
        durable=start + int(row["record_size"]), durable_record=start, durable_units=10
    )
    crash(store)
    return expected


@pytest.mark.parametrize(
    ("later", "lost"),
    [
        pytest.param("BBBBBBBBBBA", {"A": 5}, id="the queue continues after the mark"),
        pytest.param("BBBBBBBBBB", {"A": 5}, id="other queues grow after the mark"),
        pytest.param("BBBBB", {"A": 5, "B": 0}, id="as many units after the mark as are lost"),
    ],
)
def test_units_that_a_disk_has_lost_before_the_mark_are_written_again(
    tmp_path: Path, later: str, lost: dict[str, int]
) -> None:
    expected = killed_after_mark(tmp_path, later)
    for topic, first in lost.items():
        lose_units(tmp_path, topic, first)
    with open_store(tmp_path) as store:
        assert bodies(store, "A") == expected
        assert len(bodies(store, "B")) == later.count("B")
        assert put_one(store, "A")["queue_offset"] == len(expected)


def test_units_lost_after_the_mark_are_written_from_there_only(tmp_path: Path) -> None:
    killed_after_mark(tmp_path, "AAA")
    lose_units(tmp_path, "A", 10)
    notices: list[str] = []
    with MessageStore(small_config(tmp_path), FakeClock(), notice=notices.append) as store:
        assert (store.recovered.records, store.recovered.gaps) == (3, 0)
        assert bodies(store, "A") == [b"%d" % number for number in range(13)]
    assert not any("all queues are written again" in notice for notice in notices)


def test_a_mark_after_the_end_of_the_log_is_reset(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        row = put_one(store, "T")
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE_BYTES))  # the log is lost
    with open_store(tmp_path) as store:
        marks = store.mark.read()
        assert store.max_offset == 0 < row["record_size"]
        assert (marks.durable, marks.durable_record, marks.durable_units) == (0, -1, 0)
