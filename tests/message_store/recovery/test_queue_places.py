"""A damaged header costs the units of no other record, whatever recovery finds of the queues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from message_store.layout import RECORD_AT
from message_store.queues.consume_queue import is_blank
from message_store.store import MessageStore
from tests.message_store.recovery.test_recover import write_log
from tests.support.stores import crash, open_store, put_one

COUNT = 40
OTHERS = 80  # records before: a queue has never more records than the log
AT = 17  # the record of T/0 that is damaged
OFFSET_POS, QUEUE_POS = RECORD_AT.queue_offset, RECORD_AT.queue_id


def places(store: MessageStore, queue_id: int = 0) -> dict[int, int]:
    """Return the log offset that each unit of a queue names."""
    queue = store.queues.find("T", queue_id)
    assert queue is not None
    found = {}
    for offset in range(queue.min_offset, queue.max_offset):
        unit = queue.read(offset, 1)
        if not is_blank(unit)[0]:
            found[offset] = int(unit[0]["phys_offset"])
    return found


@pytest.mark.parametrize(
    ("offsets", "queue"),
    [
        ([0, 1, 66, 3, 4], {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}),  # a bit of 2 was flipped
        ([0, 1, 3, 3, 4], {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}),
        ([0, 1, 0, 3, 4], {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}),
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
    assert found == before


def test_a_flipped_queue_offset_of_the_last_record_is_known_by_its_unit(
    killed: tuple[Path, list[dict[int, int]]],
) -> None:
    root, before = killed
    flip(root, before[0][COUNT - 1] + OFFSET_POS + 7, 6)
    found, _ = reopened(root)
    assert found == before
