"""Log bytes of one store appended to another: the same log, queues and keys, however they come."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import ReplicationFault
from message_store.log.batch import PutBatch
from message_store.queues.consume_queue import ConsumeQueue
from message_store.store import MessageStore
from tests.support.failing_disk import Disk
from tests.support.stores import add_message, crash, open_store

QUEUES = [("T", 0), ("T", 3), ("Other", 1)]
UNIT_FIELDS = ["phys_offset", "size", "tags_code"]
FILE_BYTES = 1 << 16


def fill(store: MessageStore, count: int, first: int = 0) -> None:
    """Append messages of several queues, with keys and tags."""
    for number in range(first, first + count):
        batch = PutBatch()
        topic, queue_id = QUEUES[number % 3]
        properties = {"KEYS": f"k{number}", "TAGS": f"tag{number % 5}", "UNIQ_KEY": f"U{number}"}
        add_message(
            store,
            batch,
            topic,
            queue_id,
            b"%d " % number + b"x" * (number % 700),
            properties=properties,
        )
        store.put(batch)


def log_of(store: MessageStore) -> bytes:
    """Return all log bytes from the first file to the end."""
    data = b"".join(file.data.tobytes() for file in store.log.files)
    return data[: store.max_offset - store.min_offset]


def feed(store: MessageStore, data: bytes, offset: int, sizes: list[int]) -> None:
    """Append `data` in pieces of these sizes, as a connection delivers them."""
    pending = b""
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pending, at, turn = pending + data[at : at + size], at + size, turn + 1
        taken = store.append_raw(offset, np.frombuffer(pending, np.uint8))
        pending, offset = pending[taken:], offset + taken
    assert not pending


def content(store: MessageStore) -> dict[str, object]:
    """Return what readers of a store see."""
    store.index.catch_up()
    units = {place: store.units(*place, 0, 100_000)[UNIT_FIELDS].tolist() for place in QUEUES}
    keys = {n: store.query_keys(QUEUES[n % 3][0], f"k{n}", 4, 0, 1 << 62) for n in range(0, 400, 7)}
    bounds = {place: store.queue_bounds(*place) for place in QUEUES}
    return {"log": log_of(store), "units": units, "keys": keys, "bounds": bounds}


@pytest.mark.parametrize(
    "sizes",
    [[100], [1 << 20], [32 << 10], [7, 90, 1], random.Random(3).choices(range(1, 5_000), k=97)],
    ids=["100", "all", "32768", "tiny", "random"],
)
def test_a_replica_is_what_its_master_is(tmp_path: Path, sizes: list[int]) -> None:
    with open_store(tmp_path / "master") as master, open_store(tmp_path / "replica") as replica:
        fill(master, 400)
        assert len(master.log.files) > 2
        feed(replica, log_of(master), 0, sizes)
        assert content(replica) == content(master)
        assert replica.last_record == master.last_record


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_replica_goes_on_after_a_restart(tmp_path: Path, clean: bool) -> None:
    clock = FakeClock()
    with open_store(tmp_path / "master", clock) as master:
        fill(master, 300)
        first = log_of(master)
        fill(master, 100, 300)
        replica = open_store(tmp_path / "replica", clock)
        replica.__enter__()
        feed(replica, first, 0, [5_000])
        replica.__exit__(None, None, None) if clean else crash(replica)
        with open_store(tmp_path / "replica", clock) as replica:
            at = replica.max_offset
            assert at == len(first)
            feed(replica, log_of(master)[at:], at, [333])
            assert content(replica) == content(master)


def test_a_promoted_replica_numbers_queues_after_its_master(tmp_path: Path) -> None:
    with open_store(tmp_path / "master") as master, open_store(tmp_path / "replica") as replica:
        fill(master, 90)
        feed(replica, log_of(master), 0, [10_000])
        for store in (master, replica):
            fill(store, 30, 90)
        assert content(replica) == content(master)


def test_an_empty_replica_may_begin_at_a_later_file(tmp_path: Path) -> None:
    with open_store(tmp_path / "master") as master, open_store(tmp_path / "replica") as replica:
        fill(master, 400)
        feed(replica, log_of(master)[FILE_BYTES:], FILE_BYTES, [4_096])
        assert replica.min_offset == FILE_BYTES
        assert log_of(replica) == log_of(master)[FILE_BYTES:]
        first, end = replica.queue_bounds("T", 0)
        assert 0 < first < end == master.queue_bounds("T", 0)[1]
        assert [u["phys_offset"] for u in replica.units("T", 0, first, 1_000)] == [
            u["phys_offset"] for u in master.units("T", 0, first, 1_000)
        ]


@pytest.mark.parametrize("restart", [False, True])
def test_units_that_found_no_room_are_written_later(
    restart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next bytes, or by the next start, as a clean stop does not claim to have them."""
    with open_store(tmp_path / "master") as master:
        fill(master, 100)
        data = log_of(master)
        with open_store(tmp_path / "replica") as replica:
            with monkeypatch.context() as full:
                full.setattr(ConsumeQueue, "write", no_room)
                with pytest.raises(OSError, match="No space left"):
                    replica.append_raw(0, np.frombuffer(data[:9_000], np.uint8))
            at = replica.max_offset
            if not restart:
                feed(replica, data[at:], at, [9_000])
        with open_store(tmp_path / "replica") as replica:
            at = replica.max_offset
            feed(replica, data[at:], at, [9_000])
            assert content(replica) == content(master)


def test_a_full_disk_keeps_what_was_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "master") as master:
        fill(master, 100)
        data = log_of(master)
        disk = Disk(monkeypatch, tmp_path / "replica")
        with open_store(tmp_path / "replica") as replica:
            taken = replica.append_raw(0, np.frombuffer(data[:9_000], np.uint8))
            disk.full = ("commitlog",)
            with pytest.raises(OSError, match="No space left"):
                replica.append_raw(taken, np.frombuffer(data[taken:], np.uint8))
            disk.full = ()
            assert replica.max_offset == taken
            feed(replica, data[taken:], taken, [9_000])
            assert content(replica) == content(master)


def no_room(queue: ConsumeQueue, first_offset: int, block: memoryview) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_what_does_not_continue_the_log_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "master") as master, open_store(tmp_path / "replica") as replica:
        fill(master, 60)
        data = log_of(master)
        size = int.from_bytes(data[:4], "big")
        feed(replica, data[:size], 0, [size])
        second = data[size:]
        cases = {
            "diverged": (size + 1, second),
            "does not match its CRC": (size, damaged(second, 90)),
            "not a record": (size, damaged(second, 4)),
            "is damaged": (size, damaged(second, 30)),
        }
        for text, case in cases.items():
            with pytest.raises(ReplicationFault, match=text):
                replica.append_raw(case[0], np.frombuffer(case[1], np.uint8))
            assert replica.max_offset == size
        feed(replica, second, size, [500])
        assert content(replica) == content(master)


def test_a_master_with_other_file_sizes_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "master", commitlog_file_bytes=2 * FILE_BYTES) as master:
        fill(master, 800)
        data = log_of(master)
        with (
            open_store(tmp_path / "replica") as replica,
            pytest.raises(ReplicationFault, match="mappedFileSizeCommitLog"),
        ):
            feed(replica, data, 0, [4_000])
        with (
            open_store(tmp_path / "late") as late,
            pytest.raises(ReplicationFault, match="mappedFileSizeCommitLog"),
        ):
            late.append_raw(FILE_BYTES // 2, np.frombuffer(data, np.uint8))
