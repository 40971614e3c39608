"""Queue units that are not those of their records are written again; nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duemq_common.errors import RecordUnreadable, UnitsRewritten
from message_store.layout import CQ_UNIT, RECORD_AT
from message_store.store import MessageStore
from tests.support.stores import open_store, put_one

COUNT = 60
FIELDS = ["phys_offset", "size", "tags_code"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as found:
        found.notices = []  # type: ignore[attr-defined]
        found.notice = found.notices.append  # type: ignore[attr-defined]
        for number in range(COUNT):
            put_one(found, "T", 0, b"%03d" % number, properties={"TAGS": f"tag{number}"})
            put_one(found, "T", 1, b"other %03d" % number)
        yield found


def units(store: MessageStore) -> np.ndarray:
    queue = store.queues.find("T", 0)
    return np.concatenate([queue.read(at, 1) for at in range(COUNT)])


def write(store: MessageStore, offset: int, **fields: int) -> None:
    """Change fields of a unit on the disk."""
    queue = store.queues.find("T", 0)
    unit = np.zeros(1, CQ_UNIT)
    for name in FIELDS:
        unit[name] = fields.get(name, queue.read(offset, 1)[name])
    queue.write(offset, memoryview(unit.tobytes()))


@pytest.mark.parametrize("bit", [0, 3, 9, 30])
@pytest.mark.parametrize("field", ["phys_offset", "size"])
@pytest.mark.parametrize("offset", [0, 17, COUNT - 1])
def test_a_flipped_bit_is_repaired(store: MessageStore, offset: int, field: str, bit: int) -> None:
    wanted = units(store)
    write(store, offset, **{field: int(wanted[offset][field]) ^ 1 << bit})
    assert store.repair.repaired("T", 0, offset)
    assert (units(store) == wanted).all()
    assert "did not match its record" in store.notices[-1]  # type: ignore[attr-defined]
    assert not store.repair.repaired("T", 0, offset)


def test_a_page_of_another_queue_is_repaired_at_once(store: MessageStore) -> None:
    wanted, other = units(store), store.queues.find("T", 1)
    for offset in range(10, 40):
        unit = other.read(offset, 1)[0]
        write(store, offset, **{name: int(unit[name]) for name in FIELDS})
    assert store.repair.repaired("T", 0, 20)
    assert (units(store) == wanted).all()


@pytest.mark.parametrize("tags_code", [0, 12_345, -1])
def test_a_code_that_another_rule_made_stays(store: MessageStore, tags_code: int) -> None:
    """The unit points at its record, and no checksum shows that the code has changed."""
    write(store, 7, tags_code=tags_code)
    assert not store.repair.repaired("T", 0, 7)
    assert not store.repair.compare("T", 0, store.units("T", 0, 0, COUNT), 0)
    assert int(units(store)[7]["tags_code"]) == tags_code


def test_the_units_of_a_changed_block_are_repaired(store: MessageStore) -> None:
    wanted = units(store)
    store.flush()
    for offset, (field, bit) in {
        5: ("tags_code", 0),
        6: ("size", 3),
        41: ("tags_code", 40),
    }.items():
        write(store, offset, **{field: int(wanted[offset][field]) ^ 1 << bit})
    assert store.repair.compare("T", 0, store.units("T", 0, 20, 1), 20)
    assert (units(store) == wanted).all()
    assert not store.repair.compare("T", 0, store.units("T", 0, 0, COUNT), 0)


def test_a_pull_gets_the_records_of_its_units_after_a_repair(store: MessageStore) -> None:
    wanted = store.gather("T", 0, 0, store.units("T", 0, 0, 30))
    first, size = (int(units(store)[3][name]) for name in ("phys_offset", "size"))
    write(store, 5, phys_offset=first, size=size)
    with pytest.raises(UnitsRewritten):
        store.gather("T", 0, 0, store.units("T", 0, 0, 30))
    assert store.gather("T", 0, 0, store.units("T", 0, 0, 30)) == wanted


def test_a_message_whose_record_is_damaged_is_left_out(store: MessageStore) -> None:
    unit = units(store)[5]
    file = store.log.file_of(int(unit["phys_offset"]))
    file.write(int(unit["phys_offset"]) - file.base, b"\xff" * 8)
    for _ in range(2):
        with pytest.raises(RecordUnreadable):
            store.gather("T", 0, 0, store.units("T", 0, 0, 30))
    assert sum("the message is skipped" in notice for notice in store.notices) == 1  # type: ignore[attr-defined]
    rest = store.units("T", 0, 0, 30)
    rest = rest[rest["phys_offset"] != unit["phys_offset"]]
    assert store.gather("T", 0, 0, rest).count(b"tag") == 29


def test_what_is_not_in_the_queue_is_not_repaired(store: MessageStore) -> None:
    assert not store.repair.repaired("T", 0, COUNT)
    assert not store.repair.repaired("Other", 3, 0)
    assert store.queues.find("T", 0).max_offset == COUNT


def test_a_record_with_the_place_of_another_one_is_not_given_that_place(
    store: MessageStore,
) -> None:
    """The record of 17 names 16: only units between sound neighbours are written again."""
    wanted = units(store)
    start = int(wanted[17]["phys_offset"])
    file = store.log.file_of(start)
    at = start - file.base + RECORD_AT.queue_offset + 7
    file.write(at, bytes([int(file.data[at]) ^ 1]))
    assert not store.repair.repaired("T", 0, 17)
    assert (units(store) == wanted).all()
