"""Epochs: the point up to which two logs are equal, and the file, byte for byte Apache's."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.replication.epoch_file import (
    ENTRIES_KEPT,
    FILE_BYTES_MAX,
    EpochFile,
    Epochs,
    read_epochs,
)
from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import backup_path

# Apache 5.3.3 wrote the first; the second is the example in its CheckpointFile.
APACHE = {
    "1\n1725254278\n1-0\n": ((1, 0),),
    "2\n773307083\n7-7000\n8-8000\n": ((7, 7_000), (8, 8_000)),
}
OURS = Epochs.of([(1, 0), (2, 500), (4, 800)])
TEXT = OURS.encode()


@pytest.mark.parametrize("text", APACHE)
def test_bytes_are_apaches(text: str) -> None:
    assert Epochs.decode(text) == Epochs.of(APACHE[text])
    assert Epochs.of(APACHE[text]).encode() == text


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("1\n0\n5-9\n", [(5, 9)]),  # a CRC of 0 is not compared
        ("1\n1725254278\n1-0", [(1, 0)]),
        ("1\r\n1725254278\r\n1-0\r\n", [(1, 0)]),
        ("1\n0\nremark\n5-9\n", [(5, 9)]),
        ("0\n0\n", []),
        ("1\n0\n2147483647-9223372036854775807\n", [((1 << 31) - 1, (1 << 63) - 1)]),
    ],
)
def test_texts_that_apache_reads_too(text: str, entries: list[tuple[int, int]]) -> None:
    assert Epochs.decode(text) == Epochs.of(entries)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a count"),
        ("3", "not a count"),
        ("3\nx\n", "not a count"),
        ("2\n1725254278\n1-0\n", "1 of 2 entries"),
        ("1\n1725254279\n1-0\n", "CRC"),
        ("1\n0\n1--5\n", "0 of 1 entries"),
        ("1\n0\n2147483648-5\n", "out of range"),
        ("1\n0\n1-9223372036854775808\n", "out of range"),
        ("2\n0\n2-5\n1-9\n", "follows"),
        ("2\n0\n1-5\n1-5\n", "follows"),
        ("2\n0\n1-5\n2-4\n", "follows"),
        ("1\n0\n\u0661-5\n", "0 of 1 entries"),  # digits are ASCII
        ("1\n0\n1_0-5\n", "0 of 1 entries"),
    ],
)
def test_texts_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Epochs.decode(text)


@pytest.mark.parametrize("size", range(len(TEXT) - 1))
def test_no_torn_text_is_read(size: int) -> None:
    with pytest.raises(ValueError, match=r"entries|CRC|count"):
        Epochs.decode(TEXT[:size])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 40)), max_size=9))
def test_encode_and_decode_are_inverse(steps: list[tuple[int, int]]) -> None:
    epoch = offset = 0
    entries = []
    for more, size in steps:
        epoch, offset = epoch + more + 1, offset + size
        entries.append((epoch, offset))
    assert Epochs.decode(Epochs.of(entries).encode()) == Epochs.of(entries)


@pytest.mark.parametrize(
    ("end", "theirs", "their_end", "point"),
    [
        (950, [(1, 0), (2, 500), (4, 800)], 2_000, 950),  # the same epochs: the shorter log
        (950, [(1, 0), (2, 500), (4, 800)], 900, 900),
        (950, [(1, 0), (2, 500), (5, 700)], 2_000, 700),
        (950, [(1, 0), (2, 500), (5, 950)], 2_000, 800),
        (950, [(1, 0), (3, 400)], 450, 400),
        (950, [(1, 0), (2, 510)], 2_000, 500),
        (950, [(2, 500)], 600, 600),  # older epochs were removed there
        (950, [(7, 500)], 600, None),
        (950, [(1, 1)], 600, None),
        (950, [], 600, None),
        (500, [(1, 0), (3, 500)], 900, 500),  # epochs in which nothing was written
        (700, [(1, 0), (2, 500), (4, 800)], 2_000, 700),  # 4 at 800 was never written here
        (700, [(1, 0), (2, 500), (3, 600), (4, 800)], 2_000, 600),
        (0, [(1, 0), (5, 0)], 100, 0),
    ],
)
def test_logs_are_equal_up_to(
    end: int, theirs: list[tuple[int, int]], their_end: int, point: int | None
) -> None:
    assert OURS.consistent_point(end, Epochs.of(theirs), their_end) == point
    assert Epochs.of(theirs).consistent_point(their_end, OURS, end) == point


class Member:
    """A broker of a group: a log of numbered cells, and its epochs."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.epochs = Epochs()
        self.leads = False

    def follow(self, master: Member, cells: int) -> None:
        """Truncate to the consistent point, then copy up to so many cells."""
        self.leads = False
        if self.epochs.entries:
            point = self.epochs.consistent_point(len(self.log), master.epochs, len(master.log))
            if point is None:  # an operator empties the store
                assert not set(self.epochs.entries) & set(master.epochs.entries)
            else:
                assert point == common(self.log, master.log)
            del self.log[point or 0 :]
            self.epochs = self.epochs.before(point or 0)
        for at in range(len(self.log), min(len(self.log) + cells, len(master.log))):
            entry = master.epochs.covering(at)
            assert entry is not None
            if entry.epoch > self.epochs.last_epoch:
                self.epochs = self.epochs.appended(*entry)
            self.log.append(master.log[at])


def common(ours: list[int], theirs: list[int]) -> int:
    """Return how long the common beginning of two logs is."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


@given(st.integers(0, 1 << 32))
def test_members_that_follow_one_another_have_equal_logs(seed: int) -> None:
    """Masters are elected at random, also such that lack log; old masters go on for a while."""
    chance = random.Random(seed)
    group = [Member() for _ in range(3)]
    master, epoch, cell = group[0], 0, 0
    for step in ["elect", *chance.choices(["write", "follow", "follow", "elect"], k=40)]:
        if step == "write":
            writer = chance.choice([member for member in group if member.leads])
            count = chance.randrange(4)
            writer.log += range(cell, cell + count)
            cell += count
        elif step == "elect":
            epoch += chance.randrange(1, 3)
            master = chance.choice(group)
            master.leads = True
            master.epochs = master.epochs.begun(epoch, len(master.log), 0)
        else:
            chance.choice([m for m in group if m is not master]).follow(master, chance.randrange(6))
    for member in group:
        if member is not master:
            member.follow(master, 1 << 20)
            assert member.log == master.log


def test_parts_of_a_log_have_parts_of_its_epochs() -> None:
    assert OURS.before(800) == Epochs.of([(1, 0), (2, 500)])
    assert OURS.before(801) == OURS
    assert OURS.before(0) == Epochs()
    assert OURS.since(499) == OURS
    assert OURS.since(500) == Epochs.of([(2, 500), (4, 800)])
    assert OURS.since(1 << 40) == Epochs.of([(4, 800)])
    assert [OURS.covering(at) for at in (0, 499, 500, 9_000)] == [
        OURS.entries[0],
        OURS.entries[0],
        OURS.entries[1],
        OURS.entries[2],
    ]
    assert [OURS.end_after(at) for at in (0, 499, 500, 800)] == [500, 500, 800, (1 << 63) - 1]
    assert Epochs.of([(3, 70)]).covering(5) == (3, 70)
    assert Epochs().covering(5) is None


def test_a_master_begins_an_epoch() -> None:
    assert OURS.begun(5, 950, 0) == OURS.appended(5, 950)
    assert OURS.begun(4, 950, 0) == Epochs.of([(1, 0), (2, 500), (4, 950)])
    assert Epochs().begun(1, 950, 100) == Epochs.of([(1, 100)])
    with pytest.raises(ValueError, match="older than epoch 4"):
        OURS.begun(3, 950, 0)


def test_the_number_of_epochs_is_bounded() -> None:
    epochs = Epochs()
    for number in range(ENTRIES_KEPT + 5):
        epochs = epochs.appended(number, number)
    assert len(epochs.entries) == ENTRIES_KEPT
    assert epochs.last_epoch == ENTRIES_KEPT + 4


# -- the file -------------------------------------------------------------------------------------


def written(root: Path) -> EpochFile:
    """Return a file of three epochs, whose `.bak` lacks the last."""
    file = EpochFile(root / EPOCH_FILE)
    for entry in OURS.entries:
        file.append(*entry)
    return file


def test_a_missing_file_has_no_epochs(tmp_path: Path) -> None:
    assert read_epochs(tmp_path / EPOCH_FILE) == Epochs()


def test_every_change_is_in_the_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert file.path.read_text() == TEXT
    assert backup_path(file.path).read_text() == OURS.before(800).encode()
    file.truncate_from(800)
    assert EpochFile(file.path).epochs == OURS.before(800)
    file.replace(file.epochs.since(600))
    assert EpochFile(file.path).epochs == Epochs.of([(2, 500)])
    file.truncate_from(0)
    assert EpochFile(file.path).epochs == file.epochs == Epochs()
    with pytest.raises(ValueError, match="follows"):
        written(tmp_path).append(4, 900)


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "flipped", "long"])
def test_the_backup_replaces_a_damaged_file(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path).path
    damaged(path, damage)
    with caplog.at_level(logging.WARNING):
        assert read_epochs(path) == OURS.before(800)
    assert [damage != "missing"] * len(caplog.records) == [True] * (damage != "missing")
    if damage != "missing":
        damaged(backup_path(path), damage)
        with pytest.raises(CorruptStore, match=r"empty this store: the broker then copies"):
            read_epochs(path)
        backup_path(path).unlink()
        with pytest.raises(CorruptStore, match=EPOCH_FILE):
            read_epochs(path)


def damaged(path: Path, damage: str) -> None:
    """Damage a file."""
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "torn":
        path.write_bytes(data[:-4])
    elif damage == "flipped":
        path.write_bytes(data.replace(b"500", b"501"))
    else:
        path.write_bytes(data + b"\n" * FILE_BYTES_MAX)


def test_a_refused_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)

    def refused(path: Path, text: str) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr("duemq.replication.epoch_file.write_config", refused)
    with pytest.raises(OSError, match="no space"):
        file.append(9, 999)
    assert file.epochs == EpochFile(file.path).epochs == OURS


def test_a_log_has_at_most_10_000_epochs() -> None:
    entries = [(number, number) for number in range(10_001)]
    assert len(Epochs.of(entries[1:]).entries) == 10_000
    with pytest.raises(ValueError, match="the limit is 10000"):
        Epochs.of(entries)
