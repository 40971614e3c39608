"""Failures as parameters: truncated, changed, and killed at every byte and between any two steps.

After each failure the store opens, every acknowledged message is present exactly once, and each
queue continues behind its last message.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.commit_log import Appender, CommitLog, LogFile
from message_store.queues.consume_queue import ConsumeQueue
from message_store.queues.consume_queues import QueueSet
from message_store.recovery import checkpoint as checkpoint_module
from message_store.store import MessageStore
from tests.message_store.test_store import bodies
from tests.support.extended import one_in
from tests.support.stores import add_message, crash, open_store, put_one
from tests.support.topic_removal import remove_topic

MARK = "duemq.mark"
UNIT_BYTES = layout.CQ_UNIT.itemsize
QUEUES = [("T", 0), ("T", 1), ("U", 0)]


class Dead(BaseException):
    """The process ends here: no code of ours may handle this."""


def entered(root: Path) -> MessageStore:
    store = open_store(root)
    store.__enter__()
    return store


def put_round(store: MessageStore, number: int, size: int = 40) -> None:
    """Put a batch with one message for each queue, whose body has the round and the queue."""
    batch = PutBatch()
    for topic, queue_id in QUEUES:
        body = f"{number}/{topic}/{queue_id}/".encode().ljust(size, b".")
        add_message(store, batch, topic, queue_id, body, properties={"KEYS": "k", "TAGS": "t"})
    store.put(batch)
    assert not batch.filled["status"].any()


def rounds_of(store: MessageStore, topic: str, queue_id: int) -> list[int]:
    """Return the round numbers in a queue, in order."""
    return [int(body.split(b"/")[0]) for body in bodies(store, topic, queue_id)]


def check_whole(root: Path, rounds: int, *, unsure: int = 0) -> None:
    """Open the store: it must have `rounds` acknowledged rounds once, and up to `unsure` more."""
    with open_store(root) as store:
        found = {}
        for topic, queue_id in QUEUES:
            numbers = rounds_of(store, topic, queue_id)
            assert numbers[:rounds] == list(range(rounds))
            assert numbers[rounds:] in ([], list(range(rounds, rounds + unsure))[: len(numbers)])
            assert len(numbers) <= rounds + unsure
            found[topic, queue_id] = len(numbers)
        offsets = [int(at) for rows in store.scan(0) for at in rows["phys_offset"]]
        assert len(offsets) == len(set(offsets)) == sum(found.values())
        for (topic, queue_id), count in found.items():
            row = put_one(store, topic, queue_id, b"999/after")
            assert row["queue_offset"] == count
            assert rounds_of(store, topic, queue_id)[-1] == 999


def killed_store(root: Path, rounds: int = 6) -> int:
    """Leave a killed store with some rounds; return the end of its log."""
    store = entered(root)
    for number in range(rounds):
        put_round(store, number)
    end = store.max_offset
    crash(store)
    return end


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], tuple[Path, int]]:
    """Return a killed store of six rounds, to be copied."""
    root = tmp_path_factory.mktemp("killed") / "store"
    end = killed_store(root)

    def copy(target: Path) -> tuple[Path, int]:
        shutil.copytree(root, target / "store")
        return target / "store", end

    return copy


def log_path(root: Path) -> Path:
    return root / "commitlog" / f"{0:020d}"


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def last_record(root: Path, end: int) -> int:
    """Return where the last record of the log starts."""
    with open_store(root) as store:
        assert store.max_offset == end
        return store.last_record


LAST_BYTES = 91 + 40 + 1 + 14  # record of put_round: head, body, topic, KEYS and TAGS


@pytest.mark.sampled
@pytest.mark.parametrize("mark", [True, False], ids=["mark", "no-mark"])
@pytest.mark.parametrize("zeros", one_in(4, range(1, LAST_BYTES + 1)))
def test_a_last_record_without_its_end(
    tmp_path: Path, killed: Callable[..., Any], zeros: int, mark: bool
) -> None:
    root, end = killed(tmp_path)
    change(log_path(root), end - zeros, bytes(zeros))
    if not mark:
        (root / "config" / MARK).unlink()
    with open_store(root) as store:
        assert store.max_offset == end - LAST_BYTES
        counts = [len(bodies(store, *queue)) for queue in QUEUES]
        assert counts == [6, 6, 5]
        assert put_one(store, "U", 0, b"5/again")["queue_offset"] == 5
        record = store.read_record(store.last_record)
        assert record.body == b"5/again"
    check_whole(root, 5, unsure=1)


@pytest.mark.sampled
@pytest.mark.parametrize("at", one_in(4, range(LAST_BYTES)))
def test_a_changed_byte_in_the_last_record_affects_no_other(
    tmp_path: Path, killed: Callable[..., Any], at: int
) -> None:
    root, end = killed(tmp_path)
    path = log_path(root)
    start = end - LAST_BYTES
    change(path, start + at, bytes([path.read_bytes()[start + at] ^ 0x81]))
    (root / "config" / MARK).unlink()
    with open_store(root) as store:
        assert rounds_of(store, "T", 0) == list(range(6))
        assert rounds_of(store, "T", 1) == list(range(6))
        assert store.queue_bounds("U", 0)[1] in (5, 6)
        first = [store.read_record(int(u["phys_offset"])).body for u in store.units("U", 0, 0, 5)]
        assert [int(body.split(b"/")[0]) for body in first] == list(range(5))
        row = put_one(store, "T", 0, b"6/new")
        assert row["queue_offset"] == 6


@pytest.mark.sampled
@pytest.mark.parametrize("where", ["last unit", "first unit", "behind the last"])
@pytest.mark.parametrize("at", one_in(4, range(UNIT_BYTES)))
@pytest.mark.parametrize("value", [0x00, 0xFF])
def test_a_changed_byte_of_a_queue_is_restored_from_the_log(
    tmp_path: Path, killed: Callable[..., Any], where: str, at: int, value: int
) -> None:
    root, _ = killed(tmp_path)
    unit = {"last unit": 5, "first unit": 0, "behind the last": 6}[where]
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    change(path, unit * UNIT_BYTES + at, bytes([value]))
    (root / "config" / MARK).unlink()
    check_whole(root, 6)


@pytest.mark.parametrize("keep", range(6))
def test_a_truncated_queue_is_detected_in_spite_of_the_mark(tmp_path: Path, keep: int) -> None:
    with open_store(tmp_path) as store:
        for number in range(6):
            put_round(store, number)
    path = tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}"
    change(path, keep * UNIT_BYTES, bytes((6 - keep) * UNIT_BYTES))
    check_whole(tmp_path, 6)


@pytest.mark.parametrize(
    "lost", ["consumequeue", "consumequeue/T", "consumequeue/T/1", "index", "config", "checkpoint"]
)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_all_files_but_the_log_can_be_removed(tmp_path: Path, lost: str, clean: bool) -> None:
    store = entered(tmp_path)
    for number in range(6):
        put_round(store, number)
    store.__exit__(None, None, None) if clean else crash(store)
    path = tmp_path / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    check_whole(tmp_path, 6)


@pytest.mark.sampled
@pytest.mark.parametrize("at", one_in(4, [*range(100), *range(128, 228)]))
def test_a_changed_byte_in_the_mark_loses_nothing(
    tmp_path: Path, killed: Callable[..., Any], at: int
) -> None:
    root, _ = killed(tmp_path)
    path = root / "config" / MARK
    change(path, at, bytes([path.read_bytes()[at] ^ 0x10]))
    check_whole(root, 6)


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    store = entered(tmp_path)
    for number in range(6):
        put_round(store, number)
    remove_topic(store, "T")
    put_one(store, "T", 0, b"0/reborn")
    crash(store)
    with open_store(tmp_path) as store:
        assert bodies(store, "T", 0) == [b"0/reborn"]
        assert store.queue_bounds("T", 1) == (0, 0)
        assert rounds_of(store, "U", 0) == list(range(6))


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/U"])
def test_a_deleted_topic_stays_deleted_when_all_queues_are_rebuilt(
    tmp_path: Path, lost: str
) -> None:
    store = entered(tmp_path)
    for number in range(6):
        put_round(store, number)
    remove_topic(store, "T")
    put_one(store, "T", 0, b"0/reborn")
    crash(store)
    shutil.rmtree(tmp_path / lost)
    with open_store(tmp_path) as store:
        assert bodies(store, "T", 0) == [b"0/reborn"]
        assert store.queue_bounds("T", 1) == (0, 0)
        assert rounds_of(store, "U", 0) == list(range(6))


def test_a_deletion_hides_no_message_put_after_a_power_cut(tmp_path: Path) -> None:
    """The log ends before its end at the deletion, and grows beyond that again."""
    store = entered(tmp_path)
    put_one(store, "T", 0, b"0/old")
    remove_topic(store, "T")
    crash(store)
    (tmp_path / "config" / "deletedTopics.json").write_text('{"deletedTopics":{"T":1000000}}')
    with open_store(tmp_path) as store:
        put_one(store, "T", 0, b"0/new")
    shutil.rmtree(tmp_path / "consumequeue")
    with open_store(tmp_path) as store:
        assert bodies(store, "T", 0) == [b"0/new"]


# -- killed between any two steps of a put ------------------------------------------------------


def dies_on_write(part: float) -> Callable[[LogFile, int, memoryview], None]:
    """Return a LogFile.write that writes only a part and then ends the process."""

    def write(file: LogFile, pos: int, data: memoryview | bytes) -> None:
        os.pwritev(file.fd, [bytes(data)[: int(len(data) * part)]], pos)
        raise Dead

    return write


@pytest.mark.parametrize("part", [0, 0.01, 0.2, 1 / 3, 0.5, 0.9, 0.999, 1])
def test_killed_in_the_write_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    store = entered(tmp_path)
    for number in range(6):
        put_round(store, number)
    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "write", dies_on_write(part))
        with pytest.raises(Dead):
            put_round(store, 6)
    crash(store)
    check_whole(tmp_path, 6, unsure=1)


@pytest.mark.parametrize("queues_written", range(4))
def test_killed_between_the_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues_written: int
) -> None:
    store = entered(tmp_path)
    for number in range(6):
        put_round(store, number)
    left = queues_written
    of_slot = QueueSet.of_slot

    def some(self: QueueSet, slot: int) -> ConsumeQueue:
        nonlocal left
        if left == 0:
            raise Dead
        left -= 1
        return of_slot(self, slot)

    with monkeypatch.context() as patch:
        patch.setattr(QueueSet, "of_slot", some)
        if queues_written < 3:
            with pytest.raises(Dead):
                put_round(store, 6)
        else:
            put_round(store, 6)
    crash(store)
    check_whole(tmp_path, 7)


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Appender, "prepare"), (MessageStore, "_queue_units"), (MessageStore, "_log_grew")],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type[Any], step: str, after: bool
) -> None:
    store = entered(tmp_path)
    for number in range(6):
        put_round(store, number)
    call = getattr(owner, step)

    def dying(self: Any, *args: object, **kwargs: object) -> None:
        if after:
            call(self, *args, **kwargs)
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dying)
        with pytest.raises(Dead):
            put_round(store, 6)
    crash(store)
    check_whole(tmp_path, 6 if step == "prepare" else 7)


@pytest.mark.parametrize("step", ["before the blank", "after the blank", "new file made"])
def test_killed_while_a_log_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = entered(tmp_path)
    rounds = 0
    while store.log.end + 3 * 20_000 < store.config.commitlog_file_bytes:
        put_round(store, rounds, 6_000)
        rounds += 1
    method = "writable_file" if step == "new file made" else "close_file"
    call = getattr(type(store.log), method)

    def dying(self: CommitLog) -> LogFile:
        if step == "before the blank":
            raise Dead
        made = call(self)
        if step == "after the blank" or len(self.files) > 1:
            raise Dead
        return made

    with monkeypatch.context() as patch:
        patch.setattr(type(store.log), method, dying)
        acknowledged = put_until_dead(store, rounds)
    crash(store)
    check_whole(tmp_path, acknowledged, unsure=1)


def put_until_dead(store: MessageStore, first: int) -> int:
    """Put rounds until the process ends; return the number of acknowledged rounds."""
    for number in range(first, first + 10):
        try:
            put_round(store, number, 6_000)
        except Dead:
            return number
    raise AssertionError("nothing died")


def test_after_a_power_cut_unsynced_units_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and mark are those of the last sync, the log is complete, the boot ID is new."""
    monkeypatch.setattr(checkpoint_module, "BOOT_ID_PATH", tmp_path / "boot")
    (tmp_path / "boot").write_bytes(b"one")
    store = entered(tmp_path / "store")
    for number in range(3):
        put_round(store, number)
    store.flush()
    synced = tmp_path / "synced"
    shutil.copytree(tmp_path / "store" / "consumequeue", synced)
    for number in range(3, 6):
        put_round(store, number)
    crash(store)
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    shutil.copytree(synced, tmp_path / "store" / "consumequeue")
    (tmp_path / "boot").write_bytes(b"two")
    check_whole(tmp_path / "store", 6)


@pytest.mark.parametrize("lost_rounds", range(4))
def test_after_a_power_cut_that_took_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_rounds: int
) -> None:
    monkeypatch.setattr(checkpoint_module, "BOOT_ID_PATH", tmp_path / "boot")
    (tmp_path / "boot").write_bytes(b"one")
    root = tmp_path / "store"
    store = entered(root)
    ends = [0]
    for number in range(6):
        put_round(store, number)
        ends.append(store.max_offset)
    crash(store)
    left = ends[6 - lost_rounds]
    change(log_path(root), left, bytes(ends[6] - left))
    (tmp_path / "boot").write_bytes(b"two")
    check_whole(root, 6 - lost_rounds)
    check_whole_again(root, 6 - lost_rounds)


def check_whole_again(root: Path, rounds: int) -> None:
    """Open the store again and check the messages put after the recovery."""
    with open_store(root) as store:
        for topic, queue_id in QUEUES:
            assert rounds_of(store, topic, queue_id) == [*range(rounds), 999]
