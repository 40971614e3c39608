"""Checkpoint and recovery mark: a torn file never gives a mixture of two states."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store.layout import CHECKPOINT_BYTES, RECORD_AT, RECORD_HEAD_BYTES
from message_store.recovery import checkpoint as module
from message_store.recovery.checkpoint import TIMES, Checkpoint, Marks, Point, RecoveryMark
from tests.support.bad_disk import BadDisk
from tests.support.golden_stores import golden_store
from tests.support.stores import crash, open_store, put_one

OLD = Marks(100, 80, 90, 70, 10, 9)
NEW = Marks(200, 180, 190, 170, 20, 19)
SLOT_BYTES = module.BODY.size + 4
SLOT_STARTS = (0, module.SLOT_BYTES)


@pytest.mark.parametrize(
    ("store", "physic_ms", "logics_ms", "index_ms", "confirm"),
    [
        ("apache-4.9.7-clean", 1795225462423, 1795225462423, 1795225433387, 0),
        ("apache-4.9.7-running", 0, 1795225433387, 1795225433387, 0),
        ("apache-5.3.3-clean", 1795225862315, 1795225862315, 1795225832656, 79018),
        ("apache-5.3.3-killed", 1795225862315, 1795225862315, 1795225832656, 0),
    ],
)
def test_apaches_checkpoints(
    store: str, physic_ms: int, logics_ms: int, index_ms: int, confirm: int
) -> None:
    path = golden_store(store) / "checkpoint"
    assert path.stat().st_size == CHECKPOINT_BYTES
    found = Checkpoint.load(path)
    times = (found.physic_ms, found.logics_ms, found.index_ms)
    assert times == (physic_ms, logics_ms, index_ms)
    assert (found.flushed, found.confirm) == (0, confirm)


@pytest.mark.parametrize(
    ("physic_ms", "logics_ms", "expected"),
    [(9_000, 8_000, 5_000), (8_000, 9_000, 5_000), (0, 9, 0)],
)
def test_the_smaller_time_less_three_seconds_counts(
    physic_ms: int, logics_ms: int, expected: int
) -> None:
    assert Checkpoint(Path(), (physic_ms, logics_ms, 0, 0, 0)).min_timestamp_ms == expected


@pytest.mark.finding("3C2")
def test_an_update_keeps_other_fields_and_clears_the_log_offset_of_5_4(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(TIMES.pack(1, 2, 3, 4, 5, 6).ljust(CHECKPOINT_BYTES, b"\0"))
    Checkpoint.load(path).update(physic_ms=10, logics_ms=20, index_ms=30)
    assert TIMES.unpack_from(path.read_bytes()) == (10, 20, 30, 4, 5, 0)
    assert path.stat().st_size == CHECKPOINT_BYTES


@pytest.mark.finding("3C2")
@pytest.mark.parametrize("name", ["wheel", "halves", "timeline", "timeline-off", "combined"])
def test_the_log_offset_of_apache_5_5_1_is_that_of_a_record_and_is_cleared(
    name: str, tmp_path: Path
) -> None:
    store = golden_store(f"apache-5.5.1-{name}")
    before = (store / "checkpoint").read_bytes()
    offset = TIMES.unpack_from(before)[5]
    log = (store / "commitlog" / f"{0:020d}").read_bytes()
    record = log[offset : offset + RECORD_HEAD_BYTES]
    assert int.from_bytes(record[RECORD_AT.phys_offset :][:8], "big") == offset > 0
    path = tmp_path / "checkpoint"
    path.write_bytes(before)
    found = Checkpoint.load(path)
    found.update(physic_ms=found.physic_ms, logics_ms=found.logics_ms, index_ms=found.index_ms)
    assert path.read_bytes() == before[:40] + bytes(8) + before[48:]


@pytest.mark.finding("3C2")
@pytest.mark.parametrize("offset", [1, 70_000, 2**63 - 1, -1])
def test_a_start_clears_the_log_offset_before_the_first_append(offset: int, tmp_path: Path) -> None:
    """Otherwise a broker of 5.4 or later could skip records that follow a shorter log."""
    with open_store(tmp_path) as store:
        put_one(store, "T")
    path = tmp_path / "checkpoint"
    path.write_bytes(path.read_bytes()[:40] + offset.to_bytes(8, "big", signed=True) + bytes(4_048))
    store = open_store(tmp_path)
    store.__enter__()
    found = TIMES.unpack_from(path.read_bytes())
    crash(store)
    assert found[5] == 0
    assert found[0] == found[1] > 0


@pytest.mark.parametrize("left", [0, 1, 24, 39, 40, 4_095])
def test_a_short_checkpoint_is_read_as_zeros_and_completed(tmp_path: Path, left: int) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(TIMES.pack(1, 2, 3, 4, 5, 6).ljust(CHECKPOINT_BYTES, b"\0")[:left])
    found = Checkpoint.load(path)
    assert found.physic_ms == (1 if left >= 8 else 0)
    found.update(physic_ms=7, logics_ms=8, index_ms=9)
    assert Checkpoint.load(path).logics_ms == 8
    assert path.stat().st_size == CHECKPOINT_BYTES


def test_a_missing_checkpoint_is_created(tmp_path: Path) -> None:
    Checkpoint.load(tmp_path / "checkpoint").update(physic_ms=1, logics_ms=2, index_ms=3)
    assert (tmp_path / "checkpoint").stat().st_size == CHECKPOINT_BYTES


def test_an_update_never_makes_the_file_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint.load(path)
    checkpoint.update(physic_ms=1, logics_ms=2, index_ms=3)

    def refuse(fd: int, data: bytes, pos: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.update(physic_ms=4, logics_ms=5, index_ms=6)
    assert Checkpoint.load(path).physic_ms == 1


# -- our mark -----------------------------------------------------------------------------------


def written(path: Path) -> bytes:
    """Write OLD, then NEW; return the file's bytes."""
    mark = RecoveryMark.open(path)
    mark.update(**OLD._asdict())
    mark.update(**NEW._asdict())
    mark.close()
    return path.read_bytes()


def read(path: Path) -> Marks | None:
    mark = RecoveryMark.open(path)
    marks = mark.read()
    mark.close()
    return marks


def test_a_new_file_has_no_notices(tmp_path: Path) -> None:
    mark = RecoveryMark.open(tmp_path / "mark")
    assert mark.read() is None
    assert mark.point() is None
    mark.close()


def test_the_newest_ownership_records_are_read(tmp_path: Path) -> None:
    written(tmp_path / "mark")
    assert read(tmp_path / "mark") == NEW


def test_other_fields_stay(tmp_path: Path) -> None:
    mark = RecoveryMark.open(tmp_path / "mark")
    mark.update(**OLD._asdict())
    mark.update(dispatched=500)
    assert mark.read() == OLD._replace(dispatched=500)
    mark.close()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_flip_at_every_byte_falls_back_to_the_other_slot(tmp_path: Path, slot: int) -> None:
    path = tmp_path / "mark"
    intact = written(path)
    newest_slot = 0  # the second update has an even number
    expected = OLD if slot == newest_slot else NEW
    for position in range(SLOT_STARTS[slot], SLOT_STARTS[slot] + SLOT_BYTES):
        data = bytearray(intact)
        data[position] ^= 0x40
        path.write_bytes(data)
        assert (position, read(path)) == (position, expected)


def test_an_update_torn_at_every_byte_leaves_the_mark_before_it(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    before = written(path)
    mark = RecoveryMark.open(path)
    mark.update(dispatched=300)
    mark.close()
    after, start = path.read_bytes(), SLOT_STARTS[1]
    for cut in range(SLOT_BYTES + 1):
        path.write_bytes(before[:start] + after[start : start + cut] + before[start + cut :])
        expected = NEW if cut < SLOT_BYTES else NEW._replace(dispatched=300)
        assert (cut, read(path)) == (cut, expected)


@pytest.mark.parametrize("left", [0, 1, SLOT_BYTES - 1, SLOT_BYTES, 200, 4_095])
def test_a_file_cut_short_reports_the_rest_or_nothing(tmp_path: Path, left: int) -> None:
    path = tmp_path / "mark"
    path.write_bytes(written(path)[:left])
    assert read(path) in ((NEW,) if left >= SLOT_BYTES else (None,))


@given(st.binary(max_size=300))
def test_random_bytes_are_ignored(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("mark") / "mark"
    path.write_bytes(data)
    assert read(path) is None


@pytest.mark.parametrize(
    ("boot", "point"), [(b"here", Point(200, 180, 20)), (b"there", Point(190, 170, 19))]
)
def test_after_another_boot_only_synced_data_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: bytes, point: Point
) -> None:
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(module, "BOOT_ID_PATH", boot_id)
    boot_id.write_bytes(b"here\n")
    written(tmp_path / "mark")
    boot_id.write_bytes(boot + b"\n")
    mark = RecoveryMark.open(tmp_path / "mark")
    assert mark.same_boot is (boot == b"here")
    assert mark.point() == point
    mark.close()


def test_after_a_kill_only_synced_data_counts(tmp_path: Path) -> None:
    """On the same boot, a sync may have failed, so that the page cache has more than the disk."""
    mark = RecoveryMark.open(tmp_path / "mark")
    mark.update(**OLD._asdict())
    mark.close()
    again = RecoveryMark.open(tmp_path / "mark")
    assert again.same_boot
    assert again.point(clean=True) == Point(OLD.dispatched, OLD.last_record, OLD.units)
    assert again.point(clean=False) == Point(OLD.durable, OLD.durable_record, OLD.durable_units)
    again.close()


def test_without_a_boot_id_nothing_is_the_same_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BOOT_ID_PATH", tmp_path / "none")
    written(tmp_path / "mark")
    mark = RecoveryMark.open(tmp_path / "mark")
    assert not mark.same_boot
    mark.close()


def test_on_a_full_disk_the_mark_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mark"
    before = written(path)

    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    mark = RecoveryMark.open(path)
    assert mark.read() == NEW
    mark.update(dispatched=300)
    assert mark.read() == NEW._replace(dispatched=300)
    mark.close()
    assert path.read_bytes() == before


@pytest.mark.finding("E4")
def test_an_unreadable_mark_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mark"
    written(path)
    disk = BadDisk(monkeypatch)
    disk.break_page(path, 0)
    mark = RecoveryMark.open(path)
    assert mark.read() is None
    assert disk.is_sound
    mark.update(dispatched=7)
    mark.close()
    mark = RecoveryMark.open(path)
    assert mark.read().dispatched == 7
    mark.close()


@pytest.mark.finding("E4")
def test_an_unreadable_checkpoint_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\x01" * CHECKPOINT_BYTES)
    BadDisk(monkeypatch).break_file(path)
    checkpoint = Checkpoint.load(path)
    assert checkpoint.min_timestamp_ms == 0
    checkpoint.update(physic_ms=9, logics_ms=9, index_ms=9)
    assert path.stat().st_size == CHECKPOINT_BYTES
