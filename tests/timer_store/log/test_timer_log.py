"""Files of the timer log: Apache's, ours, truncated ones, and a disk that refuses writes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.errors import ConfigError, CorruptStore
from tests.support.golden_stores import golden_store
from tests.support.naive_timer_log import Unit, unpack
from tests.support.timer_logs import FILE_BYTES, NOW_MS
from timer_store.layout import MAGIC_DELETE
from timer_store.log.timer_log import FILE_BYTES_DEFAULT, TimerLog

GOLDEN = ["apache-5.3.3-clean", "apache-5.3.3-killed"]
FILE_UNITS = 49
WIDTH = 52


def unit(n: int, prev_pos: int = -1) -> Unit:
    return Unit(prev_pos, 1, NOW_MS, 5_000, n * 100, 300, 7, NOW_MS + 5_001)


def block(first: int, count: int) -> memoryview:
    return memoryview(b"".join(unit(n).pack() for n in range(first, first + count)))


def open_log(tmp_path: Path, file_bytes: int = FILE_BYTES) -> TimerLog:
    log = TimerLog(tmp_path / "timerlog", file_bytes)
    log.load()
    return log


def write_units(log: TimerLog, count: int, first: int = 0) -> None:
    """Append single units, closing files as they fill."""
    for n in range(first, first + count):
        if not log.room():
            log.close_file()
        log.append(block(n, 1))


# -- layout -------------------------------------------------------------------------------------


def test_unit_layout_of_the_specification() -> None:
    text = """
        00 00 00 34  ff ff ff ff ff ff ff ff  00 00 00 01  00 00 01 8b cf e5 6b e8  00 01 82 b8
        00 00 00 00 00 00 10 00  00 00 01 2c  00 00 0a 5d  00 00 00 00 00 00 00 00
    """
    data = bytes.fromhex(text)
    found = unpack(data)
    assert found == Unit(-1, 1, 1_700_000_001_000, 98_999 + 1, 4_096, 300, 2_653, 0)
    assert found.slot_ms == 1_700_000_100_000
    assert found.pack() == data


def test_a_default_file_has_apaches_number_of_units(tmp_path: Path) -> None:
    log = open_log(tmp_path, FILE_BYTES_DEFAULT)
    assert log.units_per_file == log.room() == 2_016_492
    log.append(block(0, 1))
    log.end = 104_857_532  # position of the last unit of a file
    assert log.room() == 1
    log.append(block(1, 1))
    assert log.room() == 0
    log.close_file()
    expected = bytes.fromhex("00000010 0000000000000000 cbd43194")
    assert log.files[0].data[104_857_584:].tobytes() == expected
    assert log.end == log.file_bytes


@pytest.mark.parametrize("store", GOLDEN)
def test_apaches_log_round_trip(store: str) -> None:
    log = TimerLog(golden_store(store) / "timerlog", FILE_BYTES)
    log.load()
    data = log.files[0].data.tobytes()
    packed = b"".join(unpack(data, n * WIDTH).pack() for n in range(32))  # as in timercheck
    assert packed == data[:1_664]
    log.close()


@pytest.mark.parametrize("file_bytes", [0, 67, 1 << 31])
def test_illegal_file_sizes(tmp_path: Path, file_bytes: int) -> None:
    with pytest.raises(ConfigError, match="mappedFileSizeTimerLog"):
        TimerLog(tmp_path, file_bytes)


# -- append, load -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 160), file_bytes=st.sampled_from([68, 120, 171, FILE_BYTES]))
def test_units_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, count: int, file_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("log")
    log = open_log(root, file_bytes)
    write_units(log, count)
    end = log.end
    log.close()
    log = open_log(root, file_bytes)
    assert log.end % file_bytes == 0
    log.truncate(end)
    write_units(log, 3, count)
    per_file = (file_bytes - 16) // WIDTH
    for n in range(count + 3):
        pos = n // per_file * file_bytes + n % per_file * WIDTH
        assert log.unit(pos)["phys_offset"] == n * 100
    log.close()


@pytest.mark.parametrize("closed", [True, False])
def test_the_end_of_a_full_file(tmp_path: Path, closed: bool) -> None:
    log = open_log(tmp_path)
    write_units(log, FILE_UNITS)
    if closed:
        log.close_file()
    expected = FILE_BYTES if closed else FILE_UNITS * WIDTH
    assert log.end == expected


@pytest.mark.parametrize(("pos", "why"), [(0, "starts at"), (5_300, "ends at"), (2_613, "no unit")])
def test_positions_without_a_unit(tmp_path: Path, pos: int, why: str) -> None:
    log = open_log(tmp_path)
    write_units(log, FILE_UNITS + 3)
    log.detach_first().erase()
    with pytest.raises(CorruptStore, match=why) as raised:
        log.unit(pos)
    assert "next start" in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("00000000000000002600", 2_601, "mappedFileSizeTimerLog is 2600"),
        ("00000000000000005200", 2_600, "starts at 2600"),
        ("0000000000000002600", 2_600, "20 digits"),
        ("0000000000000000260x", 2_600, "20 digits"),
        ("00000000000000002601", 2_600, "starts at 2600"),
    ],
)
def test_foreign_files_are_reported_by_name(tmp_path: Path, name: str, size: int, why: str) -> None:
    log = open_log(tmp_path)
    write_units(log, 1)
    log.close()
    (tmp_path / "timerlog" / name).write_bytes(b"\0" * size)
    with pytest.raises(CorruptStore, match=why):
        open_log(tmp_path)


def test_an_empty_last_file_and_directories_are_ignored(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write_units(log, 1)
    log.close()
    (tmp_path / "timerlog" / "00000000000000002600").touch()
    (tmp_path / "timerlog" / "backup").mkdir()
    assert [file.base for file in open_log(tmp_path).files] == [0]
    assert not (tmp_path / "timerlog" / "00000000000000002600").exists()


# -- truncate, remove, patch --------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 52, 2_548, 2_600, 2_652, 5_200, 5_252])
def test_truncated_bytes_read_as_zeros(tmp_path: Path, end: int) -> None:
    log = open_log(tmp_path)
    write_units(log, 2 * FILE_UNITS + 9)
    log.truncate(end)
    assert log.end == end
    assert all(not file.data[max(end - file.base, 0) :].any() for file in log.files)
    names = sorted(os.listdir(tmp_path / "timerlog"))
    assert names == [f"{base:020d}" for base in range(0, end, FILE_BYTES)]
    write_units(log, 1, 999)
    assert log.unit(end if end % FILE_BYTES <= 2_496 else 2_600)["phys_offset"] == 99_900


def test_remove_first(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write_units(log, 2 * FILE_UNITS)
    log.detach_first().erase()
    assert log.min_pos == FILE_BYTES
    assert log.index_of(10) == -1
    log.close()
    log = open_log(tmp_path)
    assert log.min_pos == FILE_BYTES
    log.truncate(log.min_pos)
    assert (log.min_pos, log.end) == (FILE_BYTES, FILE_BYTES)
    write_units(log, 1)
    assert log.unit(FILE_BYTES)["phys_offset"] == 0


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 119), min_size=1), st.sampled_from(["due_ms", "prev_pos"]))
def test_patched_numbers(
    tmp_path_factory: pytest.TempPathFactory, which: set[int], column: str
) -> None:
    log = open_log(tmp_path_factory.mktemp("log"))
    write_units(log, 120)
    places = [n // FILE_UNITS * FILE_BYTES + n % FILE_UNITS * WIDTH for n in range(120)]
    positions = np.array([places[n] for n in sorted(which)])
    log.patch(positions, column, -1 - positions)
    for n, pos in enumerate(places):
        found = log.unit(pos) if column == "due_ms" or n not in which else None
        if found is not None:
            assert found["phys_offset"] == n * 100
            assert found[column] == (-1 - pos if n in which else unit(n).__dict__[column])
        else:
            at = pos % FILE_BYTES + 4
            data = log.files[pos // FILE_BYTES].data[at : at + 8].tobytes()
            assert int.from_bytes(data, "big", signed=True) == -1 - pos
    log.close()


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 119)), st.sampled_from([1, 7, 8_192]))
def test_tombstones(
    tmp_path_factory: pytest.TempPathFactory, which: set[int], at_once: int
) -> None:
    log = open_log(tmp_path_factory.mktemp("log"))
    write_units(log, 120)
    places = [n // FILE_UNITS * FILE_BYTES + n % FILE_UNITS * WIDTH for n in range(120)]
    positions = np.array([places[n] for n in sorted(which)], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timer_store.log.timer_log.PIECE_UNITS", at_once)
        log.write_tombstones(positions, -5 - positions)
    for n, pos in enumerate(places):
        found, was = log.unit(pos), unit(n)
        buried = n in which
        assert found["magic"] == (MAGIC_DELETE if buried else was.magic)
        assert found["due_ms"] == (-5 - pos if buried else was.due_ms)
        assert found["phys_offset"] == n * 100
    log.close()


# -- to the disk --------------------------------------------------------------------------------


def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the inodes of synced files."""
    found: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: found.append(os.fstat(fd).st_ino))
    return found


def inodes(log: TimerLog) -> list[int]:
    return [os.fstat(file.fd).st_ino for file in log.files]


def test_only_changed_files_up_to_a_position_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, found = open_log(tmp_path), synced(monkeypatch)
    write_units(log, 2 * FILE_UNITS + 1)
    first, second, third = inodes(log)
    log.sync(FILE_BYTES)
    assert found == [first]
    log.sync()
    assert found == [first, second, third]
    log.sync()
    assert len(found) == 3
    log.patch(np.array([FILE_BYTES]), "due_ms", np.array([-5]))
    log.sync()
    assert found[3:] == [second]


def test_files_of_a_killed_process_are_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    write_units(log, FILE_UNITS + 1)
    log.close()
    log, found = open_log(tmp_path), synced(monkeypatch)
    log.sync()
    assert found == inodes(log)
    log.sync()
    assert found == inodes(log), "once"


@pytest.mark.finding("A8")
def test_a_failed_sync_fails_until_the_log_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    write_units(log, FILE_UNITS + 1)

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="Input/output"):
            log.sync()
    found = synced(monkeypatch)
    with pytest.raises(OSError, match="a sync has failed before"):
        log.sync()
    assert found == []
    log.close()
    log = open_log(tmp_path)
    log.sync()
    assert found == inodes(log)


def test_a_thread_syncs_while_units_are_appended(tmp_path: Path) -> None:
    log, done = open_log(tmp_path), threading.Event()
    failures = []

    def sync() -> None:
        try:
            while not done.is_set():
                log.sync()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    write_units(log, 10 * FILE_UNITS)
    done.set()
    thread.join()
    assert not failures


def test_a_failed_file_creation_does_not_change_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    write_units(log, FILE_UNITS)
    log.close_file()

    def no_room(fd: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", no_room)
        with pytest.raises(OSError, match="No space"):
            log.append(block(0, 1))
    assert (log.end, len(log.files)) == (FILE_BYTES, 1)
    assert len(os.listdir(tmp_path / "timerlog")) == 1
    log.append(block(5, 1))
    assert log.unit(FILE_BYTES)["phys_offset"] == 500


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write_units(log, 60)
    for file in log.files:
        file.release()
    assert log.unit(FILE_BYTES)["phys_offset"] == FILE_UNITS * 100
