"""A damaged header costs the units of no other record, whatever recovery finds of the queues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from message_store.layout import RECORD_AT, UNIT_BYTES
from message_store.queues.consume_queue import is_blank
from message_store.store import MessageStore
from message_store.verify import verify_store
from tests.message_store.recovery.test_recover import FILE_BYTES, write_log
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK, crash, open_store, put_one

COUNT = 40
OTHERS = 80  # records before: a queue has never more records than the log
AT = 17  # the record of T/0 that is damaged
OFFSET_POS, QUEUE_POS = RECORD_AT.queue_offset, RECORD_AT.queue_id


def places(store: MessageStore, queue_id: int = 0) -> dict[int, int]:
    """Return the log offset that each unit of a queue names."""
    queue, found = store.queues.find("T", queue_id), dict[int, int]()
    if queue is None:
        return found
    for offset in range(queue.min_offset, queue.max_offset):
        unit = queue.read(offset, 1)
        if not is_blank(unit)[0]:
            found[offset] = int(unit[0]["phys_offset"])
    return found


@pytest.mark.parametrize(
    ("offsets", "queue"),
    [
        ([0, 1, 66, 3, 4], {0: 0, 1: 1, 3: 3, 4: 4}),  # the header of 2 is damaged
        ([0, 1, 3, 3, 4], {0: 0, 1: 1, 3: 3, 4: 4}),
        ([0, 1, 0, 3, 4], {0: 0, 1: 1, 3: 3, 4: 4}),
        ([0, 1, 66, 3], {0: 0, 1: 1, 3: 3}),
        ([0, 1, 2, 1, 3], {0: 0, 1: 1, 2: 2, 3: 4}),  # a record of another queue
        ([0, 1, 2, 64, 3], {0: 0, 1: 1, 2: 2, 3: 4}),
        ([0, 1, 5, 6, 7], {0: 0, 1: 1, 5: 2, 6: 3, 7: 4}),  # units are missing
        ([0, 1, 2, 0, 1], {0: 3, 1: 4, 2: 2}),  # an Apache broker deleted the topic
        ([0, 1, 2, 3, 9], {0: 0, 1: 1, 2: 2, 3: 3, 9: 4}),
    ],
    ids=str,
)
def test_places_without_units(tmp_path: Path, offsets: list[int], queue: dict[int, int]) -> None:
    others = [{"topic": "Other", "queue_offset": number} for number in range(OTHERS)]
    write_log(tmp_path, others + [{"queue_offset": offset} for offset in offsets])
    with open_store(tmp_path) as store:
        starts = [int(row["phys_offset"]) for rows in store.scan(0) for row in rows][OTHERS:]
        assert places(store) == {offset: starts[n] for offset, n in queue.items()}


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, list[dict[int, int]]]:
    """The store of a killed broker, and the places of its units."""
    store = open_store(tmp_path, flush_commitlog_interval_ms=100_000_000)
    store.__enter__()
    for number in range(COUNT):
        put_one(store, "T", 0, b"%03d" % number * 100)
        put_one(store, "T", 1, b"other %03d" % number)
    found = [places(store, queue_id) for queue_id in (0, 1)]
    crash(store)
    return tmp_path, found


def flip(root: Path, pos: int, bit: int) -> None:
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[pos - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def reopened(root: Path) -> tuple[list[dict[int, int]], list[str]]:
    store, notices = open_store(root), list[str]()
    store.notice = notices.append
    with store:
        return [places(store, queue_id) for queue_id in (0, 1)], notices


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_queue_offset_changes_no_unit(
    killed: tuple[Path, list[dict[int, int]]], bit: int
) -> None:
    root, before = killed
    flip(root, before[0][AT] + OFFSET_POS + 7, bit)
    found, notices = reopened(root)
    assert found == before
    assert sum(f"commit log offset {before[0][AT]}:" in notice for notice in notices) == 1


@pytest.mark.parametrize("queue_id", [0, 1])
def test_a_flipped_queue_changes_no_unit_of_the_other_queue(
    killed: tuple[Path, list[dict[int, int]]], queue_id: int
) -> None:
    """The record comes before that with the same place, or after it."""
    root, before = killed
    flip(root, before[queue_id][AT] + QUEUE_POS + 3, 0)
    found, notices = reopened(root)
    assert found == before
    assert sum("it is in no queue" in notice for notice in notices) == 1


@pytest.mark.parametrize("bit", [1, 6])
def test_a_flipped_queue_offset_of_a_lost_queue_costs_no_other_unit(
    killed: tuple[Path, list[dict[int, int]]], bit: int
) -> None:
    root, before = killed
    flip(root, before[0][AT] + OFFSET_POS + 7, bit)
    shutil.rmtree(root / "consumequeue")
    found, _ = reopened(root)
    del before[0][AT]
    assert found == before


def test_a_flipped_queue_offset_of_the_last_record_leaves_its_unit(
    killed: tuple[Path, list[dict[int, int]]],
) -> None:
    root, before = killed
    flip(root, before[0][COUNT - 1] + OFFSET_POS + 7, 6)
    found, _ = reopened(root)
    assert found == before


@pytest.fixture(params=[False, True], ids=["unsynced", "synced"])
def ended(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, list[dict[int, int]]]:
    """The store of a killed broker whose last record is that of the last message of T/0."""
    store = open_store(tmp_path, flush_commitlog_interval_ms=100_000_000)
    store.__enter__()
    for number in range(COUNT):
        put_one(store, "T", 1, b"other %03d" % number)
        put_one(store, "T", 0, b"%03d" % number * 100)
    found = [places(store, queue_id) for queue_id in (0, 1)]
    if request.param:
        store.flush()
    crash(store)
    return tmp_path, found


def lose_last_unit(root: Path) -> None:
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[(COUNT - 1) * UNIT_BYTES : COUNT * UNIT_BYTES] = bytes(UNIT_BYTES)
    path.write_bytes(data)


def lose_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


@pytest.mark.sampled
@pytest.mark.parametrize("bit", [*range(8), 11, 40, 62, 63])
@pytest.mark.parametrize("lose", [lose_last_unit, lose_queues])
def test_a_flipped_queue_offset_of_the_last_record_costs_no_other_message(
    ended: tuple[Path, list[dict[int, int]]], lose: Callable[[Path], None], bit: int
) -> None:
    """Its unit is lost, so no other record or unit has its queue offset."""
    root, before = ended
    last = before[0].pop(COUNT - 1)
    flip(root, last + OFFSET_POS + 7, bit)
    lose(root)
    block = kinds(root) & {"log-block"}
    store, notices = open_store(root), list[str]()
    store.notice = notices.append
    with store:
        found = [places(store, queue_id) for queue_id in (0, 1)]
        following = int(put_one(store, "T", 0, b"new")["queue_offset"])
    kept = [offset for offset, start in found[0].items() if start == last]
    assert {offset: start for offset, start in found[0].items() if start != last} == before[0]
    assert found[1] == before[1]
    assert kept in ([], [(COUNT - 1) ^ 1 << bit])
    assert following == max([COUNT - 2, *kept]) + 1
    assert sum(f"commit log offset {last}:" in notice for notice in notices) == 1
    assert block <= kinds(root)
    shutil.rmtree(root / "config")  # the next start reads the whole log again
    assert reopened(root)[0][0].items() >= found[0].items()


def kinds(root: Path) -> set[str]:
    return {found.kind for found in verify_store(root).findings if found.severity == "error"}


@pytest.mark.parametrize(("number", "base"), [(0, 0), (0, FILE_BYTES), (7, 0), (7, FILE_BYTES)])
def test_the_first_number_of_a_queue_is_above_zero_only_after_retention(
    tmp_path: Path, number: int, base: int
) -> None:
    path = tmp_path / "commitlog" / f"{base:020d}"
    path.parent.mkdir()
    data = b""
    for topic, offset in [*(("Other", at) for at in range(OTHERS)), ("T", number)]:
        data += encode_record(
            topic=topic,
            queue_id=0,
            queue_offset=offset,
            phys_offset=base + len(data),
            body=b"x",
            property_text=b"",
            born_ms=1,
            store_ms=1,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
    path.write_bytes(data.ljust(FILE_BYTES, b"\0"))
    store, notices = open_store(tmp_path), list[str]()
    store.notice = notices.append
    with store:
        assert list(places(store)) == [number]
    reported = any("not the next one of its queue" in notice for notice in notices)
    assert reported == (number > 0 and base == 0)


@pytest.mark.parametrize(
    ("offsets", "queue"),
    [
        ([0, 1, 2, 0], {0: 3, 1: 1, 2: 2}),  # an Apache broker deleted the topic
        ([0, 1, 2, 3, 5], {0: 0, 1: 1, 2: 2, 3: 3, 5: 4}),
        ([0, 1, 2, 3, 68], {0: 0, 1: 1, 2: 2, 3: 3}),  # in another file
        ([0, 1, 2, 3, 1], {0: 0, 1: 1, 2: 2, 3: 3}),
        ([64, 1, 2], {1: 1, 2: 2}),
        ([9, 73, 11, 12], {9: 0, 11: 2, 12: 3}),
        ([64], {64: 0}),
        ([0, 1, 2, 3, 1 << 40], {0: 0, 1: 1, 2: 2, 3: 3}),  # impossible
        ([0, 1, 2, 3, -(1 << 63) + 4], {0: 0, 1: 1, 2: 2, 3: 3}),
        ([1 << 40], {}),
    ],
    ids=str,
)
def test_places_of_the_first_and_the_last_record(
    tmp_path: Path, offsets: list[int], queue: dict[int, int]
) -> None:
    test_places_without_units(tmp_path, offsets, queue)
    with open_store(tmp_path) as store:
        assert len(places(store)) == len(queue)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_restart_at_0_is_believed_if_the_block_is_not_changed(
    tmp_path: Path, damaged: bool
) -> None:
    with open_store(tmp_path) as store:
        for number in range(5):
            put_one(store, "T", 0, b"%03d" % number * 2_000)
        before = places(store)
    if damaged:
        pos = before[4] + OFFSET_POS + 7
        path = tmp_path / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[pos] = 0
        path.write_bytes(data)
    shutil.rmtree(tmp_path / "consumequeue")
    found, _ = reopened(tmp_path)
    if damaged:
        del before[4]
    assert found[0] == before
