"""Filters by tags return messages whose tags codes the disk has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.pop.queue_reader import QueueReader
from duemq.registry.subscriptions import parse_expression
from message_store.layout import RECORD_AT, UNIT_AT, UNIT_BYTES
from message_store.queues.queue_sums import BLOCK_UNITS
from message_store.store import MessageStore
from tests.duemq.pull.test_pull import Rig
from tests.support.stores import open_store, put_one

COUNT = 9
TAGS = ["A", "C", "B"]  # the codes of A and C, and those of C and B, differ in one bit
UNIT = 3


def fill(store: MessageStore) -> None:
    for number in range(COUNT):
        put_one(store, "T", 0, b"m%d" % number, properties={"TAGS": TAGS[number % 3]})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as found:
        found.notices = []  # type: ignore[attr-defined]
        found.notice = found.notices.append  # type: ignore[attr-defined]
        fill(found)
        found.flush()
        yield found


def change(store: MessageStore, offset: int, bit: int, *, sums: bool = False) -> None:
    """Flip a bit of a unit's tags code, or of the checksum of the first block."""
    name = f"consumequeue/T/0/{0:020d}"
    path = store.root / "sums" / name if sums else store.root / name
    data = bytearray(path.read_bytes())
    last = 7 if sums else offset * UNIT_BYTES + UNIT_AT.tags_code + 7
    data[last - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def pulled(run: Callable[..., Any], store: MessageStore, tags: str) -> list[int]:
    body = run(Rig(store=store).pull(subscription=tags, queueOffset=0)).body
    return [number for number in range(COUNT) if b"m%d" % number in body]


@pytest.mark.parametrize("bit", [0, 1, 7, 16, 30, 31, 40])
@pytest.mark.parametrize("offset", [0, 2, UNIT, COUNT - 1])
def test_a_pull_returns_all_messages_with_its_tags(
    run: Callable[..., Any], store: MessageStore, offset: int, bit: int
) -> None:
    change(store, offset, bit)
    assert pulled(run, store, "A || B") == [0, 2, 3, 5, 6, 8]
    assert pulled(run, store, "A || B") == [0, 2, 3, 5, 6, 8]
    lines = [notice for notice in store.notices if "did not match" in notice]  # type: ignore[attr-defined]
    assert len(lines) == 1
    assert f"T/0 at offset {offset}" in lines[0]


def test_a_pull_after_a_restart_returns_all_messages_with_its_tags(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """Also if the damaged block has got more units."""
    with open_store(tmp_path) as before:
        fill(before)
    change(before, UNIT, 1)
    with open_store(tmp_path) as store:
        put_one(store, "T", 0, b"new", properties={"TAGS": "A"})
        store.flush()
        assert pulled(run, store, "A") == [0, 3, 6]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bit", [0, 1, 31])
def test_a_pop_returns_all_messages_with_its_tags(
    store: MessageStore, bit: int, compiled: bool
) -> None:
    change(store, UNIT, bit)
    wanted = parse_expression("T", "A || B")
    found = QueueReader(store, lambda: compiled).read("T", 0, 0, COUNT, wanted)
    assert found is not None
    assert list(found.offsets) == [0, 2, 3, 5, 6, 8]


def test_a_changed_checksum_changes_nothing(run: Callable[..., Any], store: MessageStore) -> None:
    change(store, 0, 5, sums=True)
    assert pulled(run, store, "A") == [0, 3, 6]
    assert store.notices == []  # type: ignore[attr-defined]
    change(store, UNIT, 1)
    assert pulled(run, store, "A") == [0, 3, 6]


def test_a_unit_without_a_record_is_left_out(run: Callable[..., Any], store: MessageStore) -> None:
    """Its record names another queue offset, so no record of the queue has its offset."""
    start = int(store.units("T", 0, 1, 1)[0]["phys_offset"])
    store.log.file_of(0).write(start + RECORD_AT.queue_offset, b"\1")
    change(store, 1, 30)
    for _ in range(3):
        assert pulled(run, store, "A") == [0, 3, 6]
    assert sum("the message is skipped" in notice for notice in store.notices) == 1  # type: ignore[attr-defined]


def test_units_that_are_not_relied_on_are_not_compared(store: MessageStore) -> None:
    change(store, UNIT, 1)
    units = store.units("T", 0, 0, COUNT)
    assert not store.repair.compare("T", 0, units[:0], 0)
    assert not store.repair.compare("%LMQ%T", 0, units, 0)
    assert not store.repair.compare("T", 7, units, 0)
    assert not store.repair.compare("T", 0, units, BLOCK_UNITS)
    assert store.repair.compare("T", 0, units[UNIT:], 0)
