"""The offsets used at a start, and the file they are read from."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.json_dialect import dumps, loads
from message_store.recovery.log_identity import LastRecord
from schedule_service.cursor import LevelCursor
from schedule_service.recovery import (
    Saved,
    Start,
    decode_saved,
    encode_saved,
    limited,
    plan_start,
    saved_of,
    undelivered_ranges,
)
from tests.support.level_rig import level_service
from tests.support.stores import put_one

APACHE_4 = '{\n\t"offsetTable":{1:100,2:200,18:1800\n\t}\n}'
APACHE_5 = (
    '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n'
    '\t},\n\t"offsetTable":{1:100,2:200,18:1800\n\t}\n}'
)
TABLE = {1: 100, 2: 200, 18: 1_800}


@pytest.mark.parametrize(
    "text", [APACHE_4, APACHE_5, '{"offsetTable":{"1":100,"2":200,"18":1800}}']
)
def test_apaches_files_are_read(text: str) -> None:
    saved = decode_saved(loads(text))
    assert (saved.offsets, saved.log_offset, saved.ahead) == (TABLE, None, {})


def test_the_text_is_that_of_5_3_3() -> None:
    saved = Saved(TABLE, counter=3, timestamp_ms=1_700_000_000_000)
    members = loads(encode_saved(saved))
    assert dumps({name: members[name] for name in loads(APACHE_5)}) == APACHE_5
    assert '"offsetTable":{}' in encode_saved(Saved())


def test_a_table_of_0_1_0_has_no_checksum() -> None:
    saved = decode_saved(loads('{"commitLogOffset":9,"deliveredAhead":{},"offsetTable":{1:1}}'))
    assert (saved.offsets, saved.log_offset, saved.has_checksum) == ({1: 1}, 9, False)
    assert decode_saved(loads(APACHE_4)).has_checksum


def test_our_members_round_trip() -> None:
    ahead = {2: [(210, 220), (230, 231)]}
    saved = Saved(TABLE, ahead, 4_711, 5, 6, 7, last_record=LastRecord(4_700, 9))
    text = encode_saved(saved)
    assert decode_saved(loads(text)) == saved
    assert text.endswith(APACHE_5[APACHE_5.index('"offsetTable"') :])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"offsetTable":5}',
        '{"offsetTable":{1:"x"}}',
        '{"offsetTable":{0:1}}',
        '{"offsetTable":{1:-1}}',
        '{"offsetTable":{1:1},"deliveredAhead":{1:[[1]]}}',
    ],
)
def test_a_damaged_file_raises(text: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, KeyError)):
        decode_saved(loads(text))


OLD = Saved({1: 9}, log_offset=50)
OURS, THEIRS, ADOPTED = Saved({1: 5}, log_offset=500), Saved({1: 5}), {1: 2}


@pytest.mark.parametrize(
    ("saved", "adopted", "expected"),
    [
        (OURS, ADOPTED, Start(OURS, 500, covers_journal=True)),
        (None, ADOPTED, Start(Saved(), 100, claims={1: 2})),  # the whole log is read
        (None, None, Start(Saved(), 100, claims={})),
        # Apache's store, opened for the first time: it has no origins
        (THEIRS, None, Start(Saved(), 900, claims={1: 5})),
        (THEIRS, ADOPTED, Start(Saved(), 100, claims={1: 5})),  # Apache ran after us
        # beyond the end of the log
        (Saved({1: 9}, log_offset=901), ADOPTED, Start(Saved(), 100, claims={1: 2})),
        (OLD, ADOPTED, Start(OLD, 100, covers_journal=True)),
    ],
)
def test_plan_start(saved: Saved | None, adopted: dict[int, int] | None, expected: Start) -> None:
    supported = saved is None or (saved.log_offset or 0) <= 900
    found = plan_start(saved, adopted, log_min=100, log_end=900, is_supported=supported)
    assert found == expected


@pytest.mark.parametrize(
    ("entry", "ahead", "expected"),
    [
        (0, [], [(10, 50)]),
        (10, [], [(10, 50)]),
        (30, [], [(30, 50)]),
        (50, [], []),
        (99, [], []),
        (20, [(30, 40)], [(20, 30), (40, 50)]),
        (20, [(30, 90)], [(20, 30)]),
        (0, [(5, 20)], [(20, 50)]),
        (20, [(60, 70)], [(20, 50)]),
    ],
)
def test_pending_units(
    entry: int, ahead: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert undelivered_ranges(entry, ahead, 10, 50) == expected


@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_pending_units_against_a_set(
    entry: int, pieces: list[tuple[int, int]], first: int, size: int
) -> None:
    end = first + size
    ahead = sorted((low, low + n) for low, n in pieces)
    expected = {n for n in range(max(entry, first), end) if not any(a <= n < b for a, b in ahead)}
    found = undelivered_ranges(entry, ahead, first, end)
    numbers = [n for low, high in found for n in range(low, high)]
    assert numbers == sorted(expected)


def test_a_level_that_was_not_read_keeps_its_saved_offset() -> None:
    cursor = LevelCursor(2, 7)
    saved = saved_of([cursor], 300, Saved({1: 4, 2: 5}, counter=8))
    assert (saved.offsets, saved.log_offset, saved.counter) == ({1: 4, 2: 7}, 300, 8)


def test_nothing_is_delivered_twice_after_a_kill(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=50)
            clock = rig.clock
            await rig.advance(1_000)
            assert len(rig.bodies()) == 50
            rig.send(2, count=3)
            rig.crash()
        async with level_service(tmp_path, clock) as rig:
            assert len(rig.bodies()) == 50
            assert rig.service.levels[1].cursor.pending == 0
            await rig.advance(5_000)
            assert len(rig.bodies()) == 53

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        (Saved({1: 5, 2: 7}), None),
        (Saved({1: 9}), Saved({1: 8})),
        (Saved({3: 4}), Saved({3: 0})),  # its queue is missing
        (Saved({1: 2}, {1: [(3, 4), (6, 9), (9, 11)]}), Saved({1: 2}, {1: [(3, 4), (6, 8)]})),
    ],
)
def test_a_table_matches_the_queues(saved: Saved, expected: Saved | None) -> None:
    found = limited(saved, {1: 8, 2: 7})
    assert found is saved if expected is None else found == expected


@pytest.mark.parametrize("file", ["delayOffset.json", "delayLevels.json"])
def test_a_queue_that_starts_again_at_0_is_delivered(tmp_path: Path, file: str) -> None:
    """Retention removed its records and its files were lost: the old offset must not apply."""

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=30)
            clock = rig.clock
            await rig.advance(1_000)
            while len(rig.store.log.files) < 2:
                put_one(rig.store, "T", 1, bytes(1_000))
        (tmp_path / "commitlog" / ("0" * 20)).unlink()
        (tmp_path / "config" / "duemq.mark").unlink()
        shutil.rmtree(tmp_path / "consumequeue")
        if file == "delayLevels.json":  # as if Apache had delivered them earlier
            path = tmp_path / "config" / file
            path.write_text(path.read_text().replace('"adopted":{', '"adopted":{1:30'))
            (tmp_path / "config" / "delayOffset.json").unlink()
        async with level_service(tmp_path, clock) as rig:
            rig.send(1, count=3)
            rig.crash()
        async with level_service(tmp_path, clock) as rig:
            assert rig.bodies() == []
            await rig.advance(1_000)
            assert len(rig.bodies()) == 3

    asyncio.run(steps())


@pytest.mark.parametrize("damage", ["torn", "empty", "removed"])
def test_a_damaged_offsets_file_loses_nothing(tmp_path: Path, damage: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=20)
            rig.send(3, count=5)
            await rig.advance(1_000)
            clock = rig.clock
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            path = tmp_path / "config" / name
            if damage == "removed":
                path.unlink(missing_ok=True)
            else:
                path.write_text('{\n\t"offsetTable":{1:1' if damage == "torn" else "")
        async with level_service(tmp_path, clock) as rig:
            assert len(rig.bodies()) == 20
            await rig.advance(10_000)
            assert len(rig.bodies()) == 25

    asyncio.run(steps())
