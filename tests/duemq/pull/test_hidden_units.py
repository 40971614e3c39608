"""Tag filters return messages whose tags code has a flipped bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq.pop.queue_reader import QueueReader
from duemq.pull import hidden_units
from duemq.pull.hidden_units import HiddenUnits
from duemq.registry.subscriptions import parse_expression, tag_hashes
from message_store.layout import RECORD_AT, Rows
from message_store.store import MessageStore
from tests.duemq.pull.test_pull import World
from tests.support.stores import open_store, put_one

COUNT = 9
TAGS = ["wanted", "other", "A"]
PLACE = "T", 0, 0
WANTED = parse_expression("T", "wanted || A")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as found:
        for number in range(COUNT):
            put_one(found, "T", 0, b"m%d" % number, properties={"TAGS": TAGS[number % 3]})
        yield found


def flip(store: MessageStore, offset: int, bit: int) -> None:
    queue = store.queues.find("T", 0)
    assert queue is not None
    unit = queue.read(offset, 1)
    unit["tags_code"] ^= np.int64(1) << bit
    queue.rewrite(offset, unit)


def units(store: MessageStore) -> Rows:
    return store.units("T", 0, 0, COUNT)


@pytest.mark.parametrize("bit", [0, 1, 7, 16, 30, 31, 40])
@pytest.mark.parametrize("offset", [0, 2, 3])
def test_a_pull_returns_a_message_with_a_damaged_tags_code(
    run: Callable[..., Any], store: MessageStore, offset: int, bit: int
) -> None:
    world = World(store=store)
    flip(store, offset, bit)
    response = run(world.pull(subscription="wanted || A", queueOffset=0))
    found = [number for number in range(COUNT) if b"m%d" % number in response.body]
    assert found == [number for number in range(COUNT) if number % 3 != 1]


@pytest.mark.parametrize("bit", [0, 31])
def test_a_pop_returns_a_message_with_a_damaged_tags_code(store: MessageStore, bit: int) -> None:
    flip(store, 3, bit)
    found = QueueReader(store).read("T", 0, 0, COUNT, WANTED)
    assert found is not None
    assert list(found.offsets) == [0, 2, 3, 5, 6, 8]


def test_only_damaged_codes_before_the_next_offset_are_checked(
    run: Callable[..., Any], store: MessageStore
) -> None:
    """The next pull checks the units from nextBeginOffset on."""
    world = World(store=store)
    flip(store, 6, 3)
    response = run(world.pull(subscription="wanted || A", queueOffset=0, maxMsgNums=2))
    assert response.fields["nextBeginOffset"] == "3"
    response = run(world.pull(subscription="wanted || A", queueOffset=3))
    assert response.body.count(b"wanted") == 2


def test_a_code_of_a_tag_in_use_is_compared_once(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`C` and `B` differ in one bit from a code of the subscription, and are correct."""
    for tag in "CBCBAC":
        put_one(store, "U", 0, b"x", properties={"TAGS": tag})
    asked: list[int] = []
    repaired = store.repair.repaired

    def counted(topic: str, queue_id: int, offset: int) -> bool:
        asked.append(offset)
        return repaired(topic, queue_id, offset)

    monkeypatch.setattr(store.repair, "repaired", counted)
    hidden, wanted = HiddenUnits(store), parse_expression("U", "A || @")
    for _ in range(3):
        assert not hidden.repaired(("U", 0, 0), store.units("U", 0, 0, 10), wanted)
    assert asked == [0, 1]
    monkeypatch.setattr(hidden_units, "CORRECT_CODES_MAX", 1)
    assert not HiddenUnits(store).repaired(("U", 0, 0), store.units("U", 0, 0, 10), wanted)


IN_USE = ["A", "C", "B"]  # A differs from C, and C from B, in one bit


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[MessageStore]:
    """The store of a second run, with messages of tags whose codes differ in one bit."""
    with open_store(tmp_path) as before:
        for number in range(COUNT):
            put_one(before, "T", 0, b"m%d" % number, properties={"TAGS": IN_USE[number % 3]})
    with open_store(tmp_path) as found:
        found.notices = []  # type: ignore[attr-defined]
        found.notice = found.notices.append  # type: ignore[attr-defined]
        yield found


def bodies(response: bytes) -> list[int]:
    return [number for number in range(COUNT) if b"m%d" % number in response]


def test_a_pull_returns_a_message_whose_code_became_that_of_another_tag_in_use(
    run: Callable[..., Any], restarted: MessageStore
) -> None:
    """Also after the code of the other tag was compared with a record and was correct."""
    world = World(store=restarted)
    assert bodies(run(world.pull(subscription="A", queueOffset=0)).body) == [0, 3, 6]
    flip(restarted, 3, 1)
    assert units(restarted)[3]["tags_code"] == units(restarted)[1]["tags_code"]
    assert bodies(run(world.pull(subscription="A", queueOffset=0)).body) == [0, 3, 6]
    assert units(restarted)[3]["tags_code"] == units(restarted)[0]["tags_code"]
    assert [notice for notice in restarted.notices if "T/0 at offset 3" in notice]  # type: ignore[attr-defined]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_pop_returns_a_message_whose_code_became_that_of_another_tag_in_use(
    restarted: MessageStore, compiled: bool
) -> None:
    reader, wanted = QueueReader(restarted, lambda: compiled), parse_expression("T", "A || B")
    for offset in (3, 5, 8):  # A becomes C, B becomes C
        flip(restarted, offset, 1 if offset == 3 else 0)
        found = reader.read("T", 0, 0, COUNT, wanted)
        while found is None:  # a unit was repaired
            found = reader.read("T", 0, 0, COUNT, wanted)
        assert list(found.offsets) == [0, 2, 3, 5, 6, 8]


def test_units_that_this_run_has_just_written_are_in_memory(
    restarted: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk cannot have changed them. Older units of this run are compared, too."""
    for number in range(COUNT):
        put_one(restarted, "T", 0, b"n%d" % number, properties={"TAGS": IN_USE[number % 3]})
    hidden, wanted = HiddenUnits(restarted), parse_expression("T", "A")
    assert restarted.written_from == int(restarted.units("T", 0, COUNT, 1)["phys_offset"][0])

    def repaired(offset: int) -> bool:
        return hidden.repaired(("T", 0, offset), restarted.units("T", 0, offset, 50), wanted)

    assert not repaired(0)
    flip(restarted, COUNT + 3, 1)
    assert not repaired(COUNT)
    monkeypatch.setattr("message_store.reader.WRITTEN_BYTES_KEPT", 0)
    assert restarted.written_from == restarted.max_offset
    assert repaired(COUNT)
    assert not repaired(COUNT)


def test_a_unit_without_a_repair_is_left_out(restarted: MessageStore) -> None:
    """Its record names another queue offset, so no record of the queue has its offset."""
    record = restarted.log.file_of(0)
    start = int(units(restarted)[1]["phys_offset"])
    record.write(start + RECORD_AT.queue_offset, b"\1")
    hidden, wanted = HiddenUnits(restarted), parse_expression("T", "A")
    for _ in range(3):
        assert not hidden.repaired(PLACE, units(restarted), wanted)
    assert sum("the message is skipped" in notice for notice in restarted.notices) == 1  # type: ignore[attr-defined]


def test_removed_and_blank_units_are_not_compared(store: MessageStore) -> None:
    rows = units(store)
    rows["tags_code"] = tag_hashes(["wanted"])[0] ^ 1
    rows["phys_offset"] = -1
    assert not HiddenUnits(store).repaired(PLACE, rows, WANTED)


def test_units_of_light_queues_are_not_compared(restarted: MessageStore) -> None:
    """They point at records of other queues, which name these queues."""
    wanted = parse_expression("%LMQ%T", "A")
    assert not HiddenUnits(restarted).repaired(("%LMQ%T", 0, 0), units(restarted), wanted)
    assert restarted.notices == []  # type: ignore[attr-defined]


def naive_nearly(code: int, hashes: list[int]) -> bool:
    low = [(code ^ each) & 0xFFFFFFFF for each in hashes]
    return 0 not in low and any(each.bit_count() == 1 for each in low)


@pytest.mark.parametrize(
    "tags", [["a"], ["wanted", "A", "zz"], ["\xfc"], [f"tag{number}" for number in range(100)]]
)
def test_codes_with_one_different_bit_equal_those_of_the_twin(tags: list[str]) -> None:
    chance = np.random.default_rng(1)
    hashes = tag_hashes(tags).tolist()
    flips = [each ^ 1 << bit for each in hashes for bit in range(40)]
    codes = np.array([*hashes, *flips, *chance.integers(-(1 << 31), 1 << 31, 50)], np.int64)
    subscription = parse_expression("T", "||".join(tags))
    expected = [naive_nearly(code, hashes) for code in codes.tolist()]
    assert subscription.nearly_matches(codes).tolist() == expected
    assert not parse_expression("T", "*").nearly_matches(codes).any()
    assert not subscription.nearly_matches(codes[:0]).any()
