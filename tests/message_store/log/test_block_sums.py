"""Checksums of the log's blocks: every flipped bit is found, no written byte is reported."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from message_store.kernels.sums import sum_blocks
from message_store.layout import BLOCK_SUM, SUM_UNKNOWN
from message_store.log import block_sums
from message_store.log.block_sums import BLOCK_BYTES, DIRECTORY, TAIL, changed_blocks
from message_store.log.commit_log import CommitLog
from message_store.verify import verify_store
from tests.support import stores

FILE_BYTES = 3 * BLOCK_BYTES + 1_000  # the last block of a file is shorter


def test_sums_are_crcs(tmp_path: Path) -> None:
    data = np.frombuffer(Random(1).randbytes(10_000), np.uint8)
    out = np.empty(2, np.uint32)
    sum_blocks(data, 4_096, 4_096, out)
    assert out.tolist() == [zlib.crc32(data[4_096:8_192]), zlib.crc32(data[8_192:])]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    found = CommitLog(tmp_path / "commitlog", FILE_BYTES)
    found.load()
    yield found
    found.sums.close()
    found.close()


def append(log: CommitLog, count: int) -> None:
    """Write bytes that are not zero; whole files if they do not fit into one."""
    while count:
        file = log.writable_file()
        part = min(count, file.base + file.size - log.end)
        file.write(log.end - file.base, bytes(Random(log.end).choices(range(1, 256), k=part)))
        log.end += part
        count -= part


def changed(log: CommitLog) -> list[int]:
    pieces = [(file.base, file.data) for file in log.files]
    found = changed_blocks(log.sums.directory, pieces)
    return [base + first for base, first, _ in found]


def flip(log: CommitLog, offset: int, bit: int = 0) -> None:
    file = log.file_of(offset)
    byte = file.data[offset - file.base] ^ 1 << bit
    file.write(offset - file.base, bytes([byte]))


@pytest.mark.parametrize("count", [1, BLOCK_BYTES, FILE_BYTES, 2 * FILE_BYTES + 5_000])
def test_every_flip_before_the_end_is_found_after_a_stop(log: CommitLog, count: int) -> None:
    append(log, count)
    log.sums.open(0)
    log.sums.close(log.end)
    assert changed(log) == []
    for offset in sorted({0, count - 1, *Random(2).sample(range(count), min(count, 200))}):
        bit = offset % 8
        flip(log, offset, bit)
        block = offset - offset % FILE_BYTES % BLOCK_BYTES
        assert changed(log) == [block], offset
        flip(log, offset, bit)


def test_whole_blocks_are_sealed_once_and_the_open_one_at_each_sync(log: CommitLog) -> None:
    log.sums.open(0)
    for end in (10, 300, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 10, 2 * FILE_BYTES + 5):
        append(log, end - log.end)
        log.sums.seal(log.end)
        assert log.sums.sealed == end - end % FILE_BYTES % BLOCK_BYTES
        assert changed(log) == []
        flip(log, end - 1)
        assert changed(log) == [(end - 1) - (end - 1) % FILE_BYTES % BLOCK_BYTES]
        flip(log, end - 1)


@pytest.mark.parametrize("count", [1, BLOCK_BYTES + 10, FILE_BYTES + BLOCK_BYTES + 10])
def test_every_flip_before_the_last_sync_is_found_after_a_kill(log: CommitLog, count: int) -> None:
    """Bytes after it, the end of a log that grew or was torn, change nothing."""
    log.sums.open(0)
    append(log, count)
    log.sums.seal(log.end)
    append(log, 20)
    assert changed(log) == []
    flip(log, count)
    assert changed(log) == []
    flip(log, count - 1)
    found = (count - 1) - (count - 1) % FILE_BYTES % BLOCK_BYTES
    assert changed(log) == [found]


@pytest.mark.parametrize("unsynced", [0, 20, BLOCK_BYTES, FILE_BYTES])
def test_an_open_block_that_has_changed_stays_accused_after_a_start(
    log: CommitLog, unsynced: int, caplog: pytest.LogCaptureFixture
) -> None:
    log.sums.open(0)
    append(log, BLOCK_BYTES + 300)
    log.sums.seal(log.end)
    append(log, unsynced)
    flip(log, BLOCK_BYTES + 5)
    for _ in range(3):
        log.sums.close()
        caplog.clear()
        log.sums.open(log.end)
        assert "the disk has changed the 300 bytes from log offset 4096 on" in caplog.text
        assert changed(log) == [BLOCK_BYTES]
    for _ in range(3):
        append(log, BLOCK_BYTES)
        log.sums.seal(log.end)
        log.sums.close()
        log.sums.open(log.end)
        assert changed(log) == [BLOCK_BYTES]


def test_an_older_tail_that_a_power_cut_leaves_accuses_no_grown_log(log: CommitLog) -> None:
    log.sums.open(0)
    tails = []
    for _ in range(4):
        append(log, BLOCK_BYTES // 2 + 100)
        log.sums.seal(log.end)
        tails.append((log.sums.directory / TAIL).read_bytes())
    for tail in tails:
        (log.sums.directory / TAIL).write_bytes(tail)
        assert changed(log) == []
        flip(log, log.end - 1)
        assert changed(log) == ([log.sums.sealed] if tail == tails[-1] else [])
        flip(log, log.end - 1)


@pytest.mark.parametrize("cut", [0, 10, 299, 300])
def test_a_withdrawn_tail_is_withdrawn_on_the_disk(
    log: CommitLog, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut brings it back, and it accuses what was written since."""
    log.sums.open(0)
    append(log, 300)
    log.sums.seal(log.end)
    synced: list[bytes] = []
    path = log.sums.directory / TAIL
    monkeypatch.setattr(block_sums.os, "fsync", lambda fd: synced.append(path.read_bytes()))  # type: ignore[attr-defined]
    log.truncate(cut)
    assert synced == ([bytes(16)] if cut < 300 else [])
    append(log, 500)
    if cut < 300:
        flip(log, cut)
    assert changed(log) == []


def test_rewritten_blocks_before_all_tails_need_no_withdrawn_tail(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each withdrawal is a sync, and the disk may have any tail since the last one."""
    log.sums.open(0)
    tails, synced = list[bytes](), list[int]()
    path = log.sums.directory / TAIL

    def grow() -> None:
        append(log, BLOCK_BYTES // 2 + 100)
        log.sums.seal(log.end)
        tails.append(path.read_bytes())

    def rewrite(offset: int) -> None:
        with log.sums.rewriting(np.array([offset])):
            flip(log, offset)

    grow()
    rewrite(0)  # the first one withdraws the tail of an earlier process, too
    tails.clear()
    for _ in range(3):
        grow()
    first = log.sums.sealed - BLOCK_BYTES  # of the open block of the first of these tails
    monkeypatch.setattr(block_sums.os, "fsync", synced.append)  # type: ignore[attr-defined]
    rewrite(first - 1)  # in a block without a checksum
    assert path.read_bytes() == tails[-1]
    assert not synced
    for tail in tails:
        path.write_bytes(tail)
        assert changed(log) == []
    rewrite(first)
    assert not any(path.read_bytes())
    assert synced


def test_a_start_continues_after_what_is_sealed(log: CommitLog) -> None:
    log.sums.open(0)
    append(log, FILE_BYTES + BLOCK_BYTES + 10)
    log.sums.close(log.end)
    log.sums.open(log.end)
    assert log.sums.sealed == FILE_BYTES + BLOCK_BYTES
    append(log, BLOCK_BYTES)
    log.sums.close(log.end)
    assert changed(log) == []
    flip(log, FILE_BYTES + BLOCK_BYTES + 5)
    assert changed(log) == [FILE_BYTES + BLOCK_BYTES]


def test_a_log_that_was_never_sealed_is_sealed_from_its_end_on(log: CommitLog) -> None:
    append(log, FILE_BYTES + 10)
    log.sums.open(log.end)
    assert log.sums.sealed == FILE_BYTES


def test_a_log_with_a_tail_only_is_sealed_from_there_on(log: CommitLog) -> None:
    log.sums.open(0)
    append(log, 10)
    log.sums.seal(log.end)
    append(log, FILE_BYTES)
    log.sums.close()
    log.sums.open(log.end)
    assert log.sums.sealed == 0


def test_much_that_something_else_wrote_stays_unsealed(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sums, "LAG_BYTES_MAX", BLOCK_BYTES)
    log.sums.open(0)
    append(log, BLOCK_BYTES)
    log.sums.close(log.end)
    append(log, 2 * FILE_BYTES)
    log.sums.open(log.end)
    assert log.sums.sealed == 2 * FILE_BYTES + BLOCK_BYTES
    assert changed(log) == []


@pytest.mark.parametrize("cut", [0, 10, BLOCK_BYTES, FILE_BYTES - 1, FILE_BYTES, FILE_BYTES + 9])
def test_a_log_that_was_cut_and_grew_again_is_not_accused(log: CommitLog, cut: int) -> None:
    log.sums.open(0)
    append(log, 2 * FILE_BYTES)
    log.sums.close(log.end)
    log.truncate(cut)
    assert changed(log) == []
    append(log, 2 * FILE_BYTES)
    flip(log, cut, 3)
    assert changed(log) == []
    assert log.sums.sealed <= cut


@pytest.mark.parametrize("sealed_first", [True, False])
def test_blocks_that_are_rewritten_are_not_accused(log: CommitLog, sealed_first: bool) -> None:
    """Neither by checksums from before the change nor by those that are computed after it."""
    log.sums.open(0)
    append(log, FILE_BYTES + 2 * BLOCK_BYTES + 10)
    places = np.array([5, FILE_BYTES + BLOCK_BYTES, log.end - 1])
    if sealed_first:
        log.sums.close(log.end)
        log.sums.open(log.end)
    with log.sums.rewriting(places):
        for place in places.tolist():
            flip(log, place)
    log.sums.close(log.end)
    assert changed(log) == []
    flip(log, 6)
    assert changed(log) == []
    flip(log, BLOCK_BYTES)
    flip(log, FILE_BYTES)
    assert changed(log) == [BLOCK_BYTES, FILE_BYTES]


def test_a_log_that_ends_before_what_is_sealed_loses_those_checksums(log: CommitLog) -> None:
    log.sums.open(0)
    append(log, 2 * FILE_BYTES)
    log.sums.close(log.end)
    log.sums.open(BLOCK_BYTES + 10)
    assert log.sums.sealed == BLOCK_BYTES
    flip(log, BLOCK_BYTES)
    flip(log, FILE_BYTES)
    assert changed(log) == []


def test_checksums_of_removed_files_are_removed(log: CommitLog) -> None:
    log.sums.open(0)
    append(log, 2 * FILE_BYTES)
    log.sums.seal(log.end)
    log.detach_first().erase()
    append(log, FILE_BYTES - 10)
    log.sums.close(log.end)
    names = sorted(path.name for path in log.sums.directory.iterdir())
    assert names == [f"{base:020d}" for base in (FILE_BYTES, 2 * FILE_BYTES)] + [TAIL]


def test_checksums_are_listed_when_a_log_file_was_removed(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each new file of the log, which may have thousands."""
    lists, iterdir = list[Path](), Path.iterdir

    def noted(path: Path) -> Iterator[Path]:
        lists.append(path)
        return iterdir(path)

    log.sums.open(0)
    monkeypatch.setattr(Path, "iterdir", noted)
    append(log, 20 * FILE_BYTES)
    log.sums.seal(log.end)
    assert lists == [log.sums.directory]
    log.detach_first().erase()
    append(log, 10 * FILE_BYTES)
    log.sums.seal(log.end)
    assert lists == [log.sums.directory] * 2


def test_a_flipped_checksum_accuses_one_block(log: CommitLog) -> None:
    log.sums.open(0)
    append(log, FILE_BYTES)
    log.sums.close(log.end)
    path = log.sums.directory / f"{0:020d}"
    sums = np.fromfile(path, BLOCK_SUM)
    sums[1] ^= 1
    sums.tofile(path)
    assert changed(log) == [BLOCK_BYTES]
    sums[1] = SUM_UNKNOWN
    sums.tofile(path)
    assert changed(log) == []


def test_a_disk_that_refuses_a_checksum_ends_the_sealing(
    log: CommitLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.sums.directory.write_bytes(b"")
    log.sums.open(0)
    append(log, FILE_BYTES)
    log.sums.close(log.end)
    assert "checksums of the log cannot be written" in caplog.text


def test_verify_finds_a_flip_in_a_header(tmp_path: Path) -> None:
    """The birth time of a record has no other checksum."""
    with stores.open_store(tmp_path) as store:
        stores.put_one(store, "T")
    assert verify_store(tmp_path).ok
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[44] ^= 1
    path.write_bytes(data)
    found = [finding.kind for finding in verify_store(tmp_path).findings]
    assert "log-block" in found
    assert (tmp_path / DIRECTORY / TAIL).exists()


def test_a_record_in_a_changed_block_is_found(log: CommitLog) -> None:
    log.sums.open(0)
    append(log, 2 * BLOCK_BYTES + 10)
    log.sums.seal(log.end)
    whole = (10, BLOCK_BYTES)  # in two blocks
    assert log.sums.has_changed(*whole) is False
    assert log.sums.has_changed(2 * BLOCK_BYTES - 5, 10) is False  # its end is in the open block
    assert log.sums.has_changed(2 * BLOCK_BYTES, 10) is False
    assert log.sums.has_changed(2 * BLOCK_BYTES, 11) is None
    assert log.sums.has_changed(10 * FILE_BYTES, 10) is None
    flip(log, BLOCK_BYTES + 2_000)  # outside the record, but in its block
    assert log.sums.has_changed(*whole) is True
    assert log.sums.has_changed(10, 100) is False
    flip(log, 2 * BLOCK_BYTES + 9)
    assert log.sums.has_changed(2 * BLOCK_BYTES, 5) is True


def naive_sums(data: bytes) -> tuple[list[int], int | None]:
    """Return the checksums of the whole blocks of a file's bytes, and of its open block."""
    size = len(data) if len(data) == FILE_BYTES else len(data) - len(data) % BLOCK_BYTES
    whole = [zlib.crc32(data[at : min(at + BLOCK_BYTES, size)]) for at in range(0, size, 4_096)]
    return [crc or 1 for crc in whole], zlib.crc32(data[size:]) if size < len(data) else None


@pytest.mark.parametrize("seed", range(5))
def test_checksums_are_those_of_a_naive_twin(log: CommitLog, seed: int) -> None:
    """After every sync, and after bytes were cut or changed in place between two of them."""
    chance = Random(seed)
    log.sums.open(0)
    for _ in range(80):
        action = chance.random()
        if action < 0.1 and log.end % FILE_BYTES > 100:
            log.truncate(log.end - chance.randrange(1, 100))
        elif action < 0.2 and log.end % FILE_BYTES % BLOCK_BYTES > 1:
            with log.sums.rewriting(np.array([log.end - 1])):
                flip(log, log.end - 1)
            append(log, BLOCK_BYTES)  # a block that was rewritten has no checksum until then
            log.sums.seal(log.end)
        append(log, chance.choice([1, 50, 700, BLOCK_BYTES, 9_000]))
        log.sums.seal(log.end)
        assert_as_naive(log)


def assert_as_naive(log: CommitLog) -> None:
    for file in log.files:
        used = min(log.end - file.base, file.size)
        whole, crc = naive_sums(bytes(file.data[:used]))
        path = log.sums.directory / f"{file.base:020d}"
        noted = np.fromfile(path, BLOCK_SUM).tolist() if path.exists() else []
        noted += [SUM_UNKNOWN] * (len(whole) - len(noted))
        assert all(a in (b, SUM_UNKNOWN) for a, b in zip(noted, whole, strict=True))
        if crc is not None and file.base + used == log.end:
            tail = block_sums._read_tail(log.sums.directory / TAIL)
            assert tail in ((log.end, crc), None) or tail[0] < log.end - used % BLOCK_BYTES
