"""The projection of the ownership journal, compared with a naive implementation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delayed_delivery.ownership import (
    JournalEntry,
    OwnershipRecord,
    Return,
    Route,
    StateRecord,
    Transfer,
)
from delayed_delivery.ownership_projection import (
    CHECKSUM_MASK,
    JournalProjection,
    LevelProjection,
    Ownership,
    TransferTally,
    changes_of,
)
from message_store.ranges import Range, joined, within

END = 40
LEVELS = (1, 3)
LEVEL, UNOWNED = -1, -2  # owners; the others are queue offsets of transfers in the journal


@st.composite
def records(draw: st.DrawFn) -> OwnershipRecord:
    first = draw(st.integers(0, END - 1))
    end = draw(st.integers(first, END))
    some = st.lists(st.tuples(st.integers(first, end), st.integers(first, end)), max_size=4)
    fields: dict[str, Any] = {
        "migration": draw(st.sampled_from("ab")),
        "level": draw(st.sampled_from(LEVELS)),
        "first": first,
        "end": end,
        "count": draw(st.integers(0, 9)),
        "checksum": draw(st.integers(0, CHECKSUM_MASK)),
    }
    if draw(st.booleans()):
        return Transfer(**fields, excluded=tuple(joined(draw(some))))
    return Return(**fields, pending=tuple(joined(draw(some))), gone=draw(st.integers(0, 9)))


journals = st.lists(records(), max_size=12).map(
    lambda made: [JournalEntry(at, 100 * at, at, record) for at, record in enumerate(made)]
)


def numbers(ranges: list[Range] | tuple[Range, ...]) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


def naive_owners(journal: list[JournalEntry], level: int) -> list[int]:
    """Return the owner of each unit, which is in the last record that contains it."""
    owners = [LEVEL] * END
    for entry in journal:
        record = entry.record
        if record.level != level or not isinstance(record, Transfer | Return):
            continue
        for unit in range(record.first, record.end):
            if isinstance(record, Return):
                owners[unit] = LEVEL if unit in numbers(record.pending) else UNOWNED
            elif unit not in numbers(record.excluded):
                owners[unit] = entry.queue_offset
    return owners


@given(journals, st.integers(0, END), st.integers(0, END))
def test_the_last_record_of_a_unit_decides_its_owner(
    journal: list[JournalEntry], first: int, count: int
) -> None:
    owned = Ownership()
    for entry in journal:
        owned.apply(entry)
        before = {level: list(pieces) for level, pieces in owned.pieces.items()}
        assert owned.apply(entry) is None  # already applied
        assert owned.pieces == before
    for level in LEVELS:
        owners = naive_owners(journal, level)
        mine = {unit for unit, owner in enumerate(owners) if owner >= 0}
        ranges = owned.ranges(level)
        assert ranges == joined(ranges)
        assert numbers(ranges) == mine
        assert [owned.owns(level, unit) for unit in range(END)] == [n >= 0 for n in owners]
        assert owned.bounds(level) == ((min(mine), max(mine) + 1) if mine else None)
        assert owned.ranges(level, first, first + count) == within(ranges, first, first + count)
        for entry in journal:
            if isinstance(entry.record, Transfer) and entry.record.level == level:
                units = numbers(owned.ranges_of(entry))
                assert units == {n for n, by in enumerate(owners) if by == entry.queue_offset}


@given(journals, st.integers(0, END))
def test_a_level_owns_units_not_transferred_and_returned(
    journal: list[JournalEntry], low: int
) -> None:
    for level in LEVELS:
        pending, naive = [(0, END)], set(range(END))
        for change in changes_of(journal, level):
            pending = change.in_level(pending, low, END)
        for entry in journal:
            record = entry.record
            if record.level == level and isinstance(record, Transfer):
                naive -= set(range(record.first, record.end)) - numbers(record.excluded)
            elif record.level == level and isinstance(record, Return):
                naive |= {unit for unit in numbers(record.pending) if unit >= low}
        assert pending == joined(pending)
        assert numbers(pending) == naive


@given(journals)
def test_counts_are_those_of_the_newest_migration(journal: list[JournalEntry]) -> None:
    found = JournalProjection()
    for entry in journal:
        found = found.after(entry)
        assert found.after(entry) is found
    for number, level in found.levels.items():
        mine = [entry.record for entry in journal if entry.record.level == number]
        start = max((i for i, r in enumerate(mine) if r.migration != level.migration), default=-1)
        over = [record for record in mine[start + 1 :] if isinstance(record, Transfer)]
        back = [record for record in mine[start + 1 :] if isinstance(record, Return)]
        assert level.transferred_tally == TransferTally(
            sum(r.count for r in over), sum(r.checksum for r in over) & CHECKSUM_MASK
        )
        assert level.returned_tally == TransferTally(
            sum(r.count for r in back), sum(r.checksum for r in back) & CHECKSUM_MASK
        )
        assert level.gone_tally.count == sum(record.gone for record in back)


def test_a_copy_and_a_removed_range_change_nothing_elsewhere() -> None:
    owned = Ownership()
    owned.apply(JournalEntry(0, 0, 0, Transfer(migration="", level=1, first=0, end=9)))
    twin = owned.copy()
    twin.remove(1, 4, 6)
    assert (owned.ranges(1), twin.ranges(1)) == ([(0, 9)], [(0, 4), (6, 9)])
    assert twin.next_offset == 1


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            StateRecord(
                migration="m", level=3, source="planned", target="routing", operator="anna"
            ),
            {"state": "routing", "operator": "anna", "changed_ms": 7, "routed": True, "fence": 4},
        ),
        (Route(migration="m", level=3, on=False), {"routed": False, "fence": 0, "rules": {}}),
        (
            Transfer(migration="m", level=3, first=5, end=9, count=4, checksum=6),
            {"transferred": 4, "transferred_sum": 6, "first": 5, "end": 9},
        ),
    ],
    ids=["state", "route", "transfer"],
)
def test_another_migration_keeps_the_route_and_restarts_the_counts(
    record: OwnershipRecord, expected: dict[str, Any]
) -> None:
    before = LevelProjection(level=3, migration="old", routed=True, fence=4, rules={"T": 5}, gone=8)
    found = before.after(JournalEntry(1, 1, 7, record))
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.migration, found.gone) == ("m", 0)
    assert replace(before, migration="m").after(JournalEntry(1, 1, 7, record)).gone == 8


def test_tallies_of_disjoint_sets_are_added_and_subtracted() -> None:
    first, second = TransferTally(3, CHECKSUM_MASK), TransferTally(2, 5)
    assert first.plus(second) == second.plus(first) == TransferTally(5, 4)
    assert first.plus(second).minus(second) == first
    assert second.minus(first) == TransferTally(-1, 6)
