"""A truncated store is one that never had more, however often the truncation is interrupted."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import NotARecordEnd, StoreFull, StoreLocked
from message_store.recovery import truncations
from message_store.recovery.checkpoint import Checkpoint
from message_store.recovery.truncations import NO_FLOOR, Truncations
from message_store.replication import truncation
from message_store.replication.truncation import truncate_store
from message_store.store import MessageStore
from tests.message_store.replication.test_raw_append import QUEUES, content, feed, fill, log_of
from tests.support.failing_disk import Disk, SimulatedCrash
from tests.support.stores import crash, open_store, put_one, small_config

FILE_BYTES = 1 << 16
ENDINGS = ["clean", "killed"]
PARTS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "truncated")


def make(root: Path, count: int, ending: str = "clean") -> list[int]:
    """Make a store of `count` messages; return the ends of its records."""
    clock = FakeClock()
    store = open_store(root, clock)
    store.__enter__()
    ends = []
    for number in range(count):
        fill(store, 1, number)
        ends.append(store.max_offset)
        clock.advance(3)
    store.__exit__(None, None, None) if ending == "clean" else crash(store)
    return ends


def truncate(root: Path, offset: int) -> int:
    """Truncate a store; return the number of the last truncation."""
    truncate_store(small_config(root), FakeClock(), offset)
    return Truncations.load(root).generation


def grown(root: Path, count: int = 50) -> dict[str, object]:
    """Open a store, append to it, and return what readers see before and after."""
    with open_store(root, FakeClock(FakeClock().now_ms() + 5_000)) as store:
        before = content(store)
        fill(store, count, 1_000)
        return {"before": before, "after": content(store), "last": store.last_record}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = tmp_path_factory.mktemp("whole") / "store"
    return root, make(root, 300)


@pytest.mark.sampled
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kept", [1, 2, 57, 140, 299, 300])
def test_a_truncated_store_is_one_that_never_had_more(
    tmp_path: Path, kept: int, ending: str
) -> None:
    ends = make(tmp_path / "long", 300, ending)
    make(tmp_path / "short", kept)
    assert truncate(tmp_path / "long", ends[kept - 1]) == (kept < 300)
    assert grown(tmp_path / "long") == grown(tmp_path / "short")


def test_the_checkpoint_has_no_later_time_than_the_log(tmp_path: Path) -> None:
    ends = make(tmp_path, 300)
    truncate(tmp_path, ends[139])
    checkpoint = Checkpoint.load(tmp_path / "checkpoint")
    last_ms = FakeClock().now_ms() + 3 * 139
    assert (checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms) == (last_ms,) * 3


def test_a_log_may_end_where_a_file_ends_or_where_it_begins(
    tmp_path: Path, whole: tuple[Path, list[int]]
) -> None:
    for offset in (0, FILE_BYTES):
        root = tmp_path / str(offset)
        shutil.copytree(whole[0], root)
        truncate(root, offset)
        with open_store(root) as store:
            assert store.max_offset == offset
            assert len(store.log.files) == 1
            assert put_one(store, "T")["phys_offset"] == offset
            assert content(store)["log"] == log_of(store)


def test_other_places_are_refused_and_change_nothing(
    tmp_path: Path, whole: tuple[Path, list[int]]
) -> None:
    root, ends = tmp_path / "store", whole[1]
    shutil.copytree(whole[0], root)
    last_of_file = max(end for end in ends if end < FILE_BYTES)
    cases = {
        ends[4] + 1: (ends[4], ends[5]),
        ends[4] - 1: (ends[3], ends[4]),
        1: (0, ends[0]),
        last_of_file + 5: (last_of_file, FILE_BYTES),  # in the blank record
        ends[-1] + 7: (ends[-1],),
        1 << 40: (len(list((root / "commitlog").iterdir())) * FILE_BYTES,),
        -1: (0,),
    }
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for offset, nearest in cases.items():
        with pytest.raises(NotARecordEnd, match="Truncate it to") as found:
            truncate(root, offset)
        assert found.value.nearest == nearest
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_bytes_in_a_body_are_no_record_end(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        inner = bytes(log_of_one(tmp_path / "inner", at=200))
        put_one(store, "T", 0, b"x" * (200 - 91 - 1 + 3) + inner)
        end = store.max_offset
    for offset in range(1, end):
        with pytest.raises(NotARecordEnd) as found:
            truncate(tmp_path, offset)
        assert found.value.nearest == (0, end)


def log_of_one(root: Path, *, at: int) -> bytes:
    """Return a record that names the log offset `at`."""
    with open_store(root) as store:
        put_one(store, "T", 0, b"y" * (at - 92))
        assert store.max_offset == at
        put_one(store, "T", 0, b"inner")
        return log_of(store)[at:]


def test_a_running_store_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store, 5)
        with pytest.raises(StoreLocked):
            truncate(tmp_path, 0)
        assert store.max_offset > 0


def test_what_is_cut_off_is_kept(tmp_path: Path, whole: tuple[Path, list[int]]) -> None:
    root, ends = tmp_path / "store", whole[1]
    shutil.copytree(whole[0], root)
    with open_store(root) as store:
        log = log_of(store)
    for kept in (250, 100):
        generation = truncate(root, ends[kept])
        paths = sorted((root / "truncated").glob(f"*.{generation}"))
        assert int(paths[0].stem) == ends[kept]
        pieces = {int(path.stem): path.read_bytes() for path in paths}
        assert all(log[at : at + len(data)] == data for at, data in pieces.items())
        log = log[: ends[kept]] + bytes(len(log) - ends[kept])


@pytest.mark.sampled
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_kill_between_any_two_steps_is_completed(tmp_path: Path, ending: str) -> None:
    """By the next start, and by another call that is killed, too."""
    ends = make(tmp_path / "long", 200, ending)
    offset = ends[80]
    make(tmp_path / "short", 81)
    wanted = grown(tmp_path / "short")
    patch = pytest.MonkeyPatch()
    steps, chance, done = 0, random.Random(5), False
    while not done:
        for number, times in enumerate((1, 2)):
            root = tmp_path / f"{steps}-{number}"
            shutil.copytree(tmp_path / "long", root)
            disk = Disk(patch, root, counted=PARTS)
            began = False
            for turn in range(times):
                disk.steps_left = steps if turn == 0 else chance.randrange(20)
                done |= continues(root, offset) and turn == 0
                began |= bool(list((root / "config").glob("duemq.truncations.json")))
                disk.restart()
            patch.undo()
            if began:  # its file is there: the next start completes it
                assert grown(root) == wanted
            else:
                with open_store(root) as store:
                    assert store.max_offset == ends[-1]
            shutil.rmtree(root)
        steps += 1
    assert steps > 20


def continues(root: Path, offset: int) -> bool:
    """Truncate; return whether the process lived on."""
    try:
        truncate(root, offset)
    except SimulatedCrash:
        return False
    return True


def test_a_full_disk_refuses_the_truncation(
    tmp_path: Path, whole: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, ends = tmp_path / "store", whole[1]
    shutil.copytree(whole[0], root)
    with monkeypatch.context() as full:
        full.setattr(truncations, "write_config", no_room)
        with pytest.raises(StoreFull, match="Free disk space"):
            truncate(root, ends[10])
    with open_store(root) as store:
        assert store.max_offset == ends[-1]
    with monkeypatch.context() as full:
        full.setattr(truncation, "save_tail", no_room)  # a copy of it is not needed
        truncate(root, ends[10])
    with open_store(root) as store:
        assert store.max_offset == ends[10]


def no_room(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_other_records_at_the_same_offsets(tmp_path: Path, whole: tuple[Path, list[int]]) -> None:
    """A former master follows the log of another one."""
    old, new = tmp_path / "old", tmp_path / "new"
    for root in (old, new):
        shutil.copytree(whole[0], root)
    truncate(new, whole[1][120])
    with open_store(new, FakeClock(FakeClock().now_ms() + 9_000)) as master:
        fill(master, 260, 2_000)
        truncate(old, whole[1][120])
        with open_store(old) as replica:
            at = replica.max_offset
            feed(replica, log_of(master)[at:], at, [3_000])
            assert content(replica) == content(master)


# -- generations ----------------------------------------------------------------------------------


def test_a_checkpoint_is_void_where_the_log_was_cut_before_it(tmp_path: Path) -> None:
    ends = make(tmp_path, 100)
    with open_store(tmp_path) as store:
        assert store.truncations.generation == 0
        assert store.truncations.floor(0) == NO_FLOOR
    floors: dict[int, int] = {0: NO_FLOOR}
    for number, kept in enumerate([80, 60, 70, 20, 50], 1):
        generation = truncate(tmp_path, ends[kept])
        with open_store(tmp_path) as store:
            fill(store, 60, 200 * number)  # of the same sizes: the ends stay the ends
            ends = ends[: kept + 1] + ends_of(store, ends[kept])
            assert store.truncations.generation == generation == number
            floors = {g: min(at, ends[kept]) for g, at in floors.items()} | {number: NO_FLOOR}
            assert {g: store.truncations.floor(g) for g in floors} == floors
            assert store.truncations.floor(number + 1) == 0  # of another log


def ends_of(store: MessageStore, start: int) -> list[int]:
    rows = np.concatenate([rows.copy() for rows in store.scan(start)])
    return [int(end) for end in rows["phys_offset"] + rows["record_size"]]


def test_a_damaged_file_voids_every_checkpoint(tmp_path: Path) -> None:
    ends = make(tmp_path, 50)
    truncate(tmp_path, ends[20])
    for path in (tmp_path / "config").glob("duemq.truncations.json*"):
        path.write_text("{")
    with open_store(tmp_path) as store:
        assert [store.truncations.floor(generation) for generation in (0, 1, 7)] == [0, 0, 0]
        fill(store, 10, 100)
        generation = store.truncations.generation
    truncate(tmp_path, ends[20])
    with open_store(tmp_path) as store:
        assert store.truncations.floor(generation) == ends[20]


@pytest.mark.parametrize("loss", ["end", "all", "replaced"])
def test_a_log_that_was_lost_or_replaced_voids_checkpoints(tmp_path: Path, loss: str) -> None:
    ends = make(tmp_path / "store", 100)
    log_path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    if loss == "end":
        data = log_path.read_bytes()
        log_path.write_bytes(data[: ends[40]].ljust(len(data), b"\0"))
    elif loss == "all":
        log_path.unlink()
    else:
        with open_store(tmp_path / "other") as other:
            for number in range(300):
                put_one(other, "T", 0, b"%d" % number * (number % 40))
        log_path.write_bytes((tmp_path / "other" / "commitlog" / log_path.name).read_bytes())
    with open_store(tmp_path / "store") as store:
        wanted = {"end": ends[40], "all": 0, "replaced": 0}
        assert store.truncations.floor(0) == wanted[loss]
        assert store.truncations.pending is None
    with open_store(tmp_path / "store") as store:
        assert store.truncations.generation == 1


def test_queues_follow_in_a_log_with_deleted_topics(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store, 60)
        middle = store.max_offset
        fill(store, 60, 60)
        store.detach_topic("T")
        store.queues.deletions.write()
        fill(store, 30, 200)
    truncate(tmp_path, middle)
    with open_store(tmp_path) as store:
        assert store.queue_bounds("T", 0) == (0, 0)
        assert store.queues.deletions.before("T") == middle
        assert put_one(store, "T")["queue_offset"] == 0
        assert store.queue_bounds(*QUEUES[2])[1] == 20
