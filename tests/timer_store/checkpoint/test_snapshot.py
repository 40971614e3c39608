"""Checkpoint files: whatever a crash leaves of them, what is read was written once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from duemq_common.json_dialect import backup_path, loads
from tests.support.golden_stores import golden_store
from timer_store.checkpoint import snapshot as module
from timer_store.checkpoint.snapshot import (
    CHECK_FILE,
    SNAPSHOT_FILE,
    Check,
    SavedSnapshot,
    Snapshot,
    SnapshotFiles,
    decode_check,
    decode_saved,
    encode_check,
    encode_saved,
)
from timer_store.checkpoint.timer_metrics import METRICS_FILE

FIRST = Snapshot(
    read_ms=1_700_000_000_000,
    log_pos=520,
    queue_offset=10,
    log_offset=4_096,
    scan_from=2_048,
    precision_ms=1_000,
    by_topic={"T": 3, "ä": 1},
    by_file={0: 3, 1_073_741_824: 1},
    version_ms=1_700_000_000_123,
)
SECOND = replace(
    FIRST, read_ms=FIRST.read_ms + 1_000, log_pos=572, queue_offset=11, by_topic={"T": 4}
)
THIRD = replace(SECOND, read_ms=SECOND.read_ms + 1_000)
counts = st.integers(0, (1 << 63) - 1)


def written(directory: Path, *snapshots: Snapshot) -> SnapshotFiles:
    directory.mkdir(exist_ok=True)
    files = SnapshotFiles(directory)
    files.load()
    for snapshot in snapshots:
        files.write(snapshot)
    return files


def bare(snapshot: Snapshot | None) -> Snapshot | None:
    """Leave out what writing adds."""
    return None if snapshot is None else replace(snapshot, counter=0)


# -- timercheck ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "check"),
    [
        ("clean", Check(1795225890000, 1664, 32, 32, 0, 1795225890085, 57)),
        ("killed", Check(1795225880000, 1664, 32, 32, 0, 1795225880404, 52)),
    ],
)
def test_apache_s_timercheck(store: str, check: Check) -> None:
    data = (golden_store(f"apache-5.3.3-{store}") / "config" / CHECK_FILE).read_bytes()
    assert decode_check(data) == check
    assert encode_check(check) == data


@given(st.tuples(*[counts] * 7))
def test_timercheck_there_and_back(values: tuple[int, ...]) -> None:
    data = encode_check(Check(*values))
    assert len(data) == 4_096
    assert decode_check(data) == (Check(*values) if any(values) else None)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 4_096, encode_check(FIRST.check)[:55], b"\xff" * 4_096],
    ids=["empty", "zeroed", "cut short", "negative"],
)
def test_a_timercheck_that_is_silent(tmp_path: Path, data: bytes) -> None:
    written(tmp_path, FIRST, SECOND)
    (tmp_path / CHECK_FILE).write_bytes(data)
    files = SnapshotFiles(tmp_path)
    assert bare(files.load()) == SECOND
    assert files.check is None


# -- duemq.timers.json --------------------------------------------------------------------------


@given(
    st.builds(
        Snapshot,
        read_ms=counts,
        log_pos=counts,
        queue_offset=counts,
        log_offset=counts,
        scan_from=counts,
        precision_ms=st.sampled_from([100, 200, 500, 1_000]),
        by_topic=st.dictionaries(st.text(), counts),
        by_file=st.dictionaries(counts, counts),
        version_ms=counts,
        counter=counts,
    ),
    st.builds(Check, *[counts] * 7),
)
def test_snapshots_there_and_back(snapshot: Snapshot, before: Check) -> None:
    saved = SavedSnapshot(snapshot, before)
    assert decode_saved(loads(encode_saved(saved))) == saved


def test_both_queue_offsets_are_written() -> None:
    assert FIRST.check.queue_offset == FIRST.check.master_queue_offset == 10


def test_a_flipped_digit_is_noticed(tmp_path: Path) -> None:
    written(tmp_path, FIRST)
    path = tmp_path / SNAPSHOT_FILE
    path.write_text(path.read_text().replace("4096", "4097"))
    assert SnapshotFiles(tmp_path).load() is None


def test_the_last_instant_is_read(tmp_path: Path) -> None:
    written(tmp_path, FIRST, SECOND, THIRD)
    files = SnapshotFiles(tmp_path)
    assert bare(files.load()) == THIRD
    assert files.check == replace(THIRD, counter=3).check
    assert {topic: item.count for topic, item in files.metrics.counts.items()} == {"T": 4, "ä": 0}


def test_nothing_was_written_yet(tmp_path: Path) -> None:
    files = SnapshotFiles(tmp_path)
    assert files.load() is None
    assert files.check is None


def test_the_version_moves_only_with_the_positions(tmp_path: Path) -> None:
    files = written(tmp_path, FIRST)
    assert files.check.counter == 1
    files.write(replace(FIRST, version_ms=FIRST.version_ms + 5, log_offset=8_192))
    assert files.check == replace(FIRST, counter=1).check
    files.write(SECOND)
    assert files.check.counter == 2
    assert SnapshotFiles(tmp_path).load() == replace(SECOND, counter=2)


def test_apache_ran_since(tmp_path: Path) -> None:
    written(tmp_path, FIRST, SECOND)
    apache = Check(SECOND.read_ms + 9_000, 1_040, 20, 20, 0, 1_700_000_009_000, 11)
    module.write_check(tmp_path / CHECK_FILE, apache)
    files = SnapshotFiles(tmp_path)
    assert files.load() is None
    assert files.check == apache
    files.write(THIRD)  # we go on from where it was
    assert files.check.counter == 12
    assert bare(SnapshotFiles(tmp_path).load()) == THIRD


def test_apache_s_files_alone_are_no_snapshot(tmp_path: Path) -> None:
    source = golden_store("apache-5.3.3-killed") / "config"
    for name in (CHECK_FILE, METRICS_FILE):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    files = SnapshotFiles(tmp_path)
    assert files.load() is None
    assert files.check is not None
    assert files.metrics.counts["GoldenTimer"].count == 17


@pytest.mark.parametrize("step", range(30))
def test_a_crash_between_any_two_steps_leaves_an_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Every change of a file below `config` is a step; the process dies before one of them."""
    written(tmp_path, FIRST)
    left = [step]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: int | Path, **kwargs: object) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return function(*args, **kwargs)

        return call

    files = SnapshotFiles(tmp_path)
    files.load()
    with monkeypatch.context() as patch:
        for name in ("replace", "link", "fsync"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            files.write(SECOND)
            files.write(THIRD)
            done = True
        except KeyboardInterrupt:
            done = False
    found = bare(SnapshotFiles(tmp_path).load())
    assert found == THIRD if done else found in (FIRST, SECOND, THIRD)
    after = written(tmp_path, THIRD)
    assert bare(SnapshotFiles(tmp_path).load()) == THIRD
    assert after.check.counter <= 4


@pytest.mark.parametrize("refused", range(6))
def test_a_disk_that_refuses_any_file_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    files = written(tmp_path, FIRST)
    left = [refused]

    def no_room(fd: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(OSError, match="No space"):
            files.write(SECOND)
        with pytest.raises(OSError, match="No space"):
            files.write(THIRD)
    assert bare(SnapshotFiles(tmp_path).load()) in (FIRST, SECOND, THIRD)
    files.write(THIRD)
    assert bare(SnapshotFiles(tmp_path).load()) == THIRD


@pytest.mark.parametrize("keep", ["nothing", "half", "zeros", "missing"])
@pytest.mark.parametrize("name", [SNAPSHOT_FILE, CHECK_FILE, METRICS_FILE])
def test_one_file_torn(tmp_path: Path, name: str, keep: str) -> None:
    written(tmp_path, FIRST, SECOND)
    path = tmp_path / name
    data = path.read_bytes()
    torn = {"nothing": b"", "half": data[: len(data) // 2], "zeros": b"\0" * len(data)}
    path.unlink() if keep == "missing" else path.write_bytes(torn[keep])
    found = bare(SnapshotFiles(tmp_path).load())
    assert found == (FIRST if name == SNAPSHOT_FILE else SECOND)  # the backup is one behind


def test_a_lost_snapshot_and_an_older_timercheck_are_not_taken_together(tmp_path: Path) -> None:
    written(tmp_path, FIRST, SECOND)
    (tmp_path / SNAPSHOT_FILE).unlink()
    backup_path(tmp_path / SNAPSHOT_FILE).unlink()
    files = SnapshotFiles(tmp_path)
    assert files.load() is None
    assert files.check == replace(SECOND, counter=2).check
