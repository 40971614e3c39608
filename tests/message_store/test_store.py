"""The store as its users see it: what was put can be read, also after every kind of end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore, RecordUnreadable, StoreLocked
from message_store.layout import CQ_UNIT
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.stores import add_message, crash, open_store, put_one, small_config


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
    first, end = store.queue_bounds(topic, queue_id)
    found = []
    while first < end:
        for unit in store.units(topic, queue_id, first, 1_000):
            found.append(store.read_record(int(unit["phys_offset"])).body)
            first += 1
    return found


def put_many(
    store: MessageStore, count: int, topic: str = "T", queue_id: int = 0, size: int = 40
) -> list[bytes]:
    batch = PutBatch()
    wanted = [f"{i:08d}".encode().ljust(size, b".") for i in range(count)]
    for body in wanted:
        add_message(store, batch, topic, queue_id, body, properties={"KEYS": body[:8].decode()})
    store.put(batch)
    assert not batch.filled["status"].any()
    return wanted


def test_what_was_put_is_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        row = put_one(store, "T", 3, b"hello", properties={"TAGS": "TagA"})
        assert (row["phys_offset"], row["queue_offset"], row["status"]) == (0, 0, 0)
        record = store.read_record(0)
        assert record.body == b"hello"
        assert record.topic == "T"
        assert record.properties == {"TAGS": "TagA"}
        assert store.queue_bounds("T", 3) == (0, 1)
        assert store.units("T", 3, 0, 10)[0]["tags_code"] == 2_598_919


def test_responses_are_sent_when_the_log_has_the_messages_before_their_queues(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path) as store:
        put_many(store, 1)
        batch, ends = PutBatch(), list[tuple[int, int]]()
        for _ in range(2):
            add_message(store, batch, "T", 0, b"next")
        batch.on_appended = lambda: ends.append((store.max_offset, store.queue_bounds("T", 0)[1]))
        store.put(batch)
        assert ends == [(store.max_offset, 1)]
        assert store.queue_bounds("T", 0) == (0, 3)
        batch.clear()
        assert batch.on_appended is None


def test_a_message_without_its_unit_is_in_the_queue_after_a_kill(tmp_path: Path) -> None:
    def killed() -> None:
        raise SystemExit

    store = open_store(tmp_path)
    store.__enter__()
    put_many(store, 1)
    batch = PutBatch()
    add_message(store, batch, "T", 0, b"acknowledged")
    batch.on_appended = killed
    with pytest.raises(SystemExit):
        store.put(batch)
    assert store.queue_bounds("T", 0) == (0, 1)
    crash(store)
    with open_store(tmp_path) as store:
        assert bodies(store, "T")[1:] == [b"acknowledged"]


def test_rolls_over_files_and_reads_across_them(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        expected = put_many(store, 2_000)
        assert len(store.log.files) > 2
        assert bodies(store, "T") == expected
        units = store.units("T", 0, 0, 50)
        assert store.gather("T", 0, 0, units).count(b"....") > 0


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("mark", [True, False], ids=["mark", "no-mark"])
def test_reopened_store_has_everything_and_continues(
    tmp_path: Path, clean: bool, mark: bool
) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    expected = put_many(store, 700)
    crash(store) if not clean else store.__exit__(None, None, None)
    if not mark:
        (tmp_path / "config" / "duemq.mark").unlink()
    with open_store(tmp_path) as store:
        assert bodies(store, "T") == expected
        assert put_one(store, "T")["queue_offset"] == 700


@pytest.mark.parametrize("cut", [1, 8, 40, 99, 110, 130, 200])
def test_torn_tail_is_cut_and_nothing_before_it(tmp_path: Path, cut: int) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    expected = put_many(store, 20)
    row = put_one(store, "T", 0, b"the last one", properties={"k": "v" * 100})
    crash(store)
    path = tmp_path / "commitlog" / f"{0:020d}"
    end = int(row["phys_offset"]) + int(row["record_size"])
    with path.open("r+b") as file:
        file.seek(end - cut)
        file.write(bytes(cut))
    (tmp_path / "config" / "duemq.mark").unlink()
    with open_store(tmp_path) as store:
        assert bodies(store, "T") == expected
        assert store.max_offset == int(row["phys_offset"])
        assert put_one(store, "T", 0, b"again")["queue_offset"] == 20
    assert list((tmp_path / "truncated").iterdir())


def test_lost_queues_are_rebuilt_from_the_log(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        expected = put_many(store, 300, queue_id=2)
    for path in (tmp_path / "consumequeue" / "T" / "2").iterdir():
        path.unlink()
    (tmp_path / "config" / "duemq.mark").unlink()
    with open_store(tmp_path) as store:
        assert bodies(store, "T", 2) == expected


def test_record_with_a_bad_crc_does_not_end_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    put_many(store, 10)
    crash(store)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    (tmp_path / "config" / "duemq.mark").unlink()
    with open_store(tmp_path) as store:
        assert store.recovered.damaged == [0]
        assert store.queue_bounds("T", 0) == (0, 10)
        with pytest.raises(RecordUnreadable):
            store.read_record(0)


def test_second_broker_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path):
        assert_refused_to_others(tmp_path)


def assert_refused_to_others(root: Path) -> None:
    code = (
        "from tests.support.stores import open_store\nfrom pathlib import Path\nimport sys\n"
        "open_store(Path(sys.argv[1])).__enter__()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "another broker uses this store" in done.stderr


def test_a_second_owner_in_the_same_process_is_refused_and_takes_nothing_from_the_first(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path):
        for _ in range(2):
            with pytest.raises(StoreLocked, match="another broker uses this store"):
                open_store(tmp_path).__enter__()
        assert_refused_to_others(tmp_path)


def test_lock_is_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with open_store(tmp_path):
            pass


def test_file_of_another_size_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T")
    with (
        pytest.raises(CorruptStore, match="mappedFileSizeCommitLog"),
        open_store(tmp_path, commitlog_file_bytes=131_072),
    ):
        pass


@pytest.mark.parametrize(
    ("body", "properties", "why"),
    [(b"x" * 20_001, {}, "maxMessageSize"), (b"", {"k": "v" * 32_768}, "properties")],
)
def test_oversize_is_refused_with_13(
    tmp_path: Path, body: bytes, properties: dict[str, str], why: str
) -> None:
    with open_store(tmp_path) as store:
        batch = PutBatch()
        add_message(store, batch, "T", 0, b"before")
        add_message(store, batch, "T", 0, body, properties=properties)
        add_message(store, batch, "T", 0, b"after")
        store.put(batch)
        assert batch.filled["status"].tolist() == [0, 13, 0]
        assert why in batch.remarks[1]
        assert bodies(store, "T") == [b"before", b"after"]


def test_disk_that_refuses_leaves_no_trace_and_writes_continue_later(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T", 0, b"one")
        file = store.log.writable_file()
        write, file.write = file.write, _no_room  # type: ignore[assignment]
        assert put_one(store, "T", 0, b"two")["status"] == 14
        assert not store.writable
        assert bodies(store, "T") == [b"one"]
        file.write = write
        store.check_disk()
        assert put_one(store, "T", 0, b"three")["queue_offset"] == 1
        assert bodies(store, "T") == [b"one", b"three"]


def _no_room(pos: int, data: memoryview) -> None:
    raise OSError(28, "No space left on device")


def test_queue_that_could_not_be_written_is_caught_up(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T", 0, b"one")
        queue = store.queues.find("T", 0)
        write, queue.write = queue.write, _no_room
        assert put_one(store, "T", 0, b"two")["status"] == 0
        assert not store.writable
        queue.write = write
        store.check_disk()
        assert bodies(store, "T") == [b"one", b"two"]


def test_room_on_the_disk_excuses_no_sync_that_failed_meanwhile(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        file = store.log.writable_file()
        write, file.write = file.write, _no_room  # type: ignore[assignment]
        assert put_one(store, "T")["status"] == 14
        file.write = write
        catch_up = store.queues.catch_up

        def fail_meanwhile() -> None:
            catch_up()
            store.flusher.fail(OSError(5, "Input/output error"))  # in the flusher's thread

        store.queues.catch_up = fail_meanwhile
        store.check_disk()
        assert "cannot be synced" in store.refusal
        assert put_one(store, "T")["status"] == 14


def test_search_by_time(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        start = clock.now_ms()
        for _ in range(5):
            put_one(store, "T")
            put_one(store, "T")
            clock.advance(100)
        for step_ms, lower, upper in [(0, 0, 1), (1, 2, 1), (100, 2, 3), (401, 10, 9), (-5, 0, 0)]:
            assert store.search_offset("T", 0, start + step_ms) == lower
            assert store.search_offset("T", 0, start + step_ms, upper=True) == upper


def test_clock_that_falls_back_a_little_stands_still(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        first = put_one(store, "T")["store_ms"]
        clock.advance(-500)
        assert put_one(store, "T")["store_ms"] == first
        clock.advance(-5_000)
        assert put_one(store, "T")["store_ms"] == clock.now_ms()


def test_query_by_key_and_unique_id(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        offsets = [
            int(
                put_one(store, "T", 0, properties={"KEYS": f"a k{i}", "UNIQ_KEY": f"U{i}"})[
                    "phys_offset"
                ]
            )
            for i in range(5)
        ]
        late = store.clock.now_ms() + 1
        assert store.query_keys("T", "U3", 32, 0, late) == [offsets[3]]
        assert store.query_keys("T", "a", 32, 0, late) == offsets[::-1]
        assert store.query_keys("T", "a", 2, 0, late) == offsets[:2:-1]


def test_queue_offsets_are_per_queue(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        batch = PutBatch()
        for i in range(30):
            add_message(store, batch, f"T{i % 3}", i % 2, str(i).encode())
        store.put(batch)
        for topic in range(3):
            for queue in range(2):
                expected = [str(i).encode() for i in range(30) if (i % 3, i % 2) == (topic, queue)]
                assert bodies(store, f"T{topic}", queue) == expected


def test_queue_file_size_is_rounded_up() -> None:
    assert small_config(Path("/x"), queue_file_bytes=1_001).queue_file_bytes % CQ_UNIT.itemsize == 0


def test_after_a_kill_what_was_found_is_synced_before_it_counts_as_durable(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    put_many(store, 50)
    store.flush()
    synced = store.durable_offset
    put_many(store, 50)
    crash(store)
    with open_store(tmp_path, flush_commitlog_interval_ms=3_600_000) as store:
        assert store.flusher.durable <= synced  # the flusher has not run yet
        store.flush()
        assert store.durable_offset == store.max_offset > synced


def test_a_put_lists_the_queues_of_its_units_once(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        batch = PutBatch(5)
        for queue_id in (2, 0, 2, -1, 1):
            add_message(store, batch, "T", queue_id, b"x")
        batch.refuse(4, 1, "refused by a hook")
        store.put(batch)
        topic = store.topics.find("T")
        assert list(batch.queue_slots) == [store.topics.slot(topic, n) for n in (2, 0)]
