"""Level tables of a master, on replicas with another configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from delayed_delivery import ownership
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.topics import LEVELS_TOPIC, SCHEDULE_TOPIC
from message_store.log.batch import PutBatch
from message_store.replication.truncation import truncate_store
from message_store.store import MessageStore
from schedule_service import level_journal
from schedule_service.level_tables import LevelTables
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.plugin import create_plugin
from schedule_service.tags_code_rule import LevelRule
from tests.message_store.replication.test_raw_append import feed, log_of
from tests.support.apache_levels import deliver_as_apache
from tests.support.level_rig import FakeHost, Rig, level_service
from tests.support.stores import add_message, open_store, put_one, small_config

MASTERS, REPLICAS = "1h 2h", "1s 1s 1s"
Codes = dict[int, list[int]]


def codes(store: MessageStore) -> Codes:
    """Return the tags codes of each level's queue."""
    units = {level: store.units(SCHEDULE_TOPIC, level - 1, 0, 1_000) for level in (1, 2)}
    return {level: found["tags_code"].tolist() for level, found in units.items()}


@contextmanager
def replica(root: Path, levels: str = REPLICAS) -> Iterator[tuple[MessageStore, LevelTables]]:
    """Open the store of a replica, as a broker does."""
    tables = LevelTables(root, levels)
    rules = (LevelRule(SCHEDULE_TOPIC, tables.history.tables),)
    with open_store(root, rules=rules) as store:
        tables.open_replica(store)
        yield store, tables


def copied(store: MessageStore) -> None:
    """Have a master believe that replicas copy its log."""
    store.replicated.is_copied = lambda: True


def change(rig: Rig, levels: str) -> None:
    rig.plugin.reconfigure({"messageDelayLevel": levels})


async def write_history(rig: Rig) -> None:
    """Send before the first record, after it, and after two changes."""
    for level in (1, 2, 1):
        rig.send(level, count=3)
    copied(rig.store)
    await rig.host.scheduler.jobs["schedule_service.tables"]()
    rig.send(1, count=2)
    for levels in ("3h 2h", "1h 30s"):
        rig.clock.advance(7)
        change(rig, levels)
        rig.send(1, count=2)
        rig.send(2, count=2)


@pytest.mark.parametrize("sizes", [[1 << 20], [100], [700, 90]], ids=["all", "100", "790"])
def test_a_replica_has_the_due_times_of_its_master(tmp_path: Path, sizes: list[int]) -> None:
    async def steps() -> None:
        async with level_service(tmp_path / "m", None, {"messageDelayLevel": MASTERS}) as rig:
            await write_history(rig)
            with replica(tmp_path / "r") as (store, tables):
                feed(store, log_of(rig.store), 0, sizes)
                assert codes(store) == codes(rig.store)
                assert tables.history.text == "1h 30s"
            with replica(tmp_path / "r", "5s") as (store, tables):  # another configuration again
                assert tables.history.texts == rig.plugin.history.texts
                rig.send(2)
                feed(store, log_of(rig.store)[store.max_offset :], store.max_offset, sizes)
                assert codes(store) == codes(rig.store)

    asyncio.run(steps())


def test_a_promoted_replica_keeps_the_promises_of_its_master(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path / "m", None, {"messageDelayLevel": MASTERS}) as rig:
            await write_history(rig)
            promised, clock = codes(rig.store), rig.clock
            with replica(tmp_path / "r") as (store, _):
                feed(store, log_of(rig.store), 0, [500])
        levels = {"messageDelayLevel": REPLICAS}
        async with level_service(tmp_path / "r", clock, levels, before=copied) as heir:
            assert codes(heir.store) == promised
            heir.send(1, b"of the new master")
            await heir.advance(1_000)
            assert heir.bodies() == [b"of the new master"]
            found = level_journal.newest(heir.store)
            assert found is not None
            assert found.history.text == REPLICAS
            assert found.history.texts == heir.plugin.history.texts
            last = sorted(each for many in promised.values() for each in many)
            await heir.advance(last[0] - 1 - heir.clock.now_ms())
            assert len(heir.bodies()) == 1
            await heir.advance(1)
            assert len(heir.bodies()) > 1

    asyncio.run(steps())


def test_a_correction_that_was_interrupted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written last: without it, the next start corrects all due times again."""

    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    async def steps() -> None:
        async with level_service(tmp_path / "m", None, {"messageDelayLevel": MASTERS}) as rig:
            await write_history(rig)
            with replica(tmp_path / "r") as (store, _):
                with monkeypatch.context() as patch:
                    patch.setattr("schedule_service.level_tables.correct_due_times", refuse)
                    with pytest.raises(OSError, match="No space"):
                        feed(store, log_of(rig.store), 0, [1 << 20])
                assert codes(store) != codes(rig.store)
            with replica(tmp_path / "r") as (store, _):
                rest = log_of(rig.store)[store.max_offset :]
                feed(store, rest, store.max_offset, [1 << 20])
                assert codes(store) == codes(rig.store)

    asyncio.run(steps())


def test_a_correction_that_failed_is_repeated_at_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    async def steps() -> None:
        async with level_service(tmp_path / "m", None, {"messageDelayLevel": MASTERS}) as rig:
            await write_history(rig)
            root = tmp_path / "r"
            host = FakeHost(str(root), rig.clock, {"messageDelayLevel": REPLICAS})
            plugin = create_plugin(host)
            with open_store(root, rules=tuple(plugin.tags_code_rules())) as store:
                plugin.open_replica(store)
                with monkeypatch.context() as patch:
                    patch.setattr("schedule_service.level_tables.correct_due_times", refuse)
                    with pytest.raises(OSError, match="No space"):
                        feed(store, log_of(rig.store), 0, [1 << 20])
                assert codes(store) != codes(rig.store)
                plugin.follow_master({}, store, rig.store.max_offset)
                feed(store, log_of(rig.store)[store.max_offset :], store.max_offset, [1 << 20])
                assert codes(store) == codes(rig.store)

    asyncio.run(steps())


def test_a_table_of_what_was_cut_off_is_not_in_force(tmp_path: Path) -> None:
    """A former master changed its table in records that its successor does not have."""

    async def steps() -> None:
        levels, clock = {"messageDelayLevel": MASTERS}, FakeClock()
        async with level_service(tmp_path / "a", clock, levels, before=copied) as rig:
            rig.send(1)
            common = log_of(rig.store)
            change(rig, "5s 5s")
            rig.send(1)
        with replica(tmp_path / "b") as (store, _):
            feed(store, common, 0, [500])
        truncate_store(small_config(tmp_path / "a"), clock, len(common))
        async with level_service(tmp_path / "b", clock, levels, before=copied) as heir:
            heir.send(1, b"x" * 700)
            heir.send(2)
            rest = log_of(heir.store)[len(common) :]
            with replica(tmp_path / "a") as (store, tables):
                assert tables.history.text == MASTERS
                feed(store, rest, len(common), [500])
                assert codes(store) == codes(heir.store)

    asyncio.run(steps())


def test_the_table_of_a_start_precedes_its_first_message(tmp_path: Path) -> None:
    """A master that has no lease yet cannot append; its first message waits for the record."""

    async def steps() -> None:
        fence = ["no lease"]

        def fenced(store: MessageStore) -> None:
            copied(store)
            store.fence = lambda: fence[0]

        async with level_service(tmp_path, before=fenced) as rig:
            assert level_journal.newest(rig.store) is None
            fence[0] = ""
            batch = rig.send(1)
            found = level_journal.newest(rig.store)
            assert found is not None
            assert found.phys_offset < batch.rows[0]["phys_offset"]
            rig.send(1)
            await rig.host.scheduler.jobs["schedule_service.tables"]()
            assert rig.store.queue_bounds(LEVELS_TOPIC, 0) == (0, 1)

    asyncio.run(steps())


def test_a_master_without_replicas_appends_no_table(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            change(rig, "2s")
            await rig.host.scheduler.jobs["schedule_service.tables"]()
            assert rig.store.max_offset == 0

    asyncio.run(steps())


def test_a_record_that_is_not_a_brokers_is_skipped(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, before=copied) as rig:
            batch = rig.put(_of_a_client(rig.store))
            assert batch.rows[0]["queue_offset"] == 1
            known = rig.plugin.history.texts
            found = level_journal.newest(rig.store)
            assert found is not None
            assert found.history.texts == known

    asyncio.run(steps())


def _of_a_client(store: MessageStore) -> PutBatch:
    batch = PutBatch(1)
    body = b'{"kind":"levels","delivered":{},"history":[{"fromOffset":0,"levels":"1s"}]}'
    add_message(store, batch, LEVELS_TOPIC, 0, body)
    return batch


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_heir_whose_clock_differs_delivers_each_message_once_and_not_before_its_time(
    tmp_path: Path, hours: int
) -> None:
    """The due times are the former master's: the heir reads them by its own clock."""

    async def steps() -> None:
        async with level_service(tmp_path / "m", None, {"messageDelayLevel": MASTERS}) as rig:
            for body in (b"a", b"b"):
                rig.send(2, body)
                rig.clock.advance(60_000)
            with replica(tmp_path / "r", MASTERS) as (store, _):
                feed(store, log_of(rig.store), 0, [500])
            due_ms = codes(rig.store)[2]
            clock = FakeClock(rig.clock.now_ms() + hours * 3_600_000)
        levels = {"messageDelayLevel": MASTERS}
        async with level_service(tmp_path / "r", clock, levels, before=copied) as heir:
            heir.send(1, b"new")
            for at, expected in (
                (due_ms[0] - 1, []),
                (due_ms[0], [b"a"]),
                (due_ms[1] - 1, [b"a"]),
                (due_ms[1], [b"a", b"b"]),
            ):
                await heir.advance(at - heir.clock.now_ms())
                assert [body for body in heir.bodies() if body != b"new"] == expected
            await heir.advance(2 * 3_600_000)
            assert sorted(heir.bodies()) == [b"a", b"b", b"new"]
            heir.crash()
        async with level_service(tmp_path / "r", clock, levels, before=copied) as heir:
            await heir.advance(1)
            assert sorted(heir.bodies()) == [b"a", b"b", b"new"]

    asyncio.run(steps())


# -- progress of a master of Apache's --------------------------------------------------------------


async def stale_progress(tmp_path: Path, clock: FakeClock) -> None:
    """Write a store with five pending messages, and progress of before any was due."""
    async with level_service(tmp_path, clock, before=copied) as rig:
        for number in range(5):
            rig.send(1, b"%d" % number)


def test_a_member_that_was_down_does_not_repeat_what_an_apache_master_delivered(
    tmp_path: Path,
) -> None:
    """Its deliveries name no source; the next DueMQ master has written how far they went."""

    async def steps() -> None:
        clock = FakeClock()
        await stale_progress(tmp_path, clock)
        clock.advance(1_000)
        with open_store(tmp_path, clock) as store:
            found = level_journal.newest(store)
            assert found is not None
            for number in range(3):
                put_one(store, "T", body=b"%d" % number)
            assert not level_journal.append(store, found.history, {1: 3, 2: 0}, clock.now_ms())
        async with level_service(tmp_path, clock, before=copied) as rig:
            await rig.advance(10)
            assert rig.bodies() == [b"0", b"1", b"2", b"3", b"4"]

    asyncio.run(steps())


def test_what_the_timers_returned_later_is_pending(tmp_path: Path) -> None:
    async def steps() -> None:
        clock = FakeClock()
        await stale_progress(tmp_path, clock)
        with open_store(tmp_path, clock) as store:
            found = level_journal.newest(store)
            assert found is not None
            moved = ownership.Transfer(migration="m", level=1, first=0, end=5, count=5)
            ownership.append(store, moved, clock.now_ms())
            assert not level_journal.append(store, found.history, {1: 5}, clock.now_ms())
            back = ownership.Return(
                migration="m", level=1, first=0, end=5, pending=((1, 3),), count=2, gone=3
            )
            ownership.append(store, back, clock.now_ms())
        async with level_service(tmp_path, clock, before=copied) as rig:
            await rig.advance(1_000)
            assert rig.bodies() == [b"1", b"2"]

    asyncio.run(steps())


def test_a_master_after_one_of_apaches_writes_how_far_it_delivered(tmp_path: Path) -> None:
    async def steps() -> None:
        clock = FakeClock()
        await stale_progress(tmp_path, clock)
        path = tmp_path / "config" / "delayOffset.json"
        table = {"dataVersion": {"counter": 1}, "offsetTable": {1: 4}}
        json_dialect.write_config(path, json_dialect.dumps(table))
        clock.advance(1_000)
        with open_store(tmp_path, clock) as store:
            deliver_as_apache(store, 1, 0, 4)
        async with level_service(tmp_path, clock, before=copied) as rig:
            assert rig.store.queue_bounds(LEVELS_TOPIC, 0) == (0, 2)
            found = level_journal.newest(rig.store)
            assert found is not None
            assert found.delivered == {1: 4}
            await rig.host.scheduler.jobs["schedule_service.tables"]()
            assert rig.store.queue_bounds(LEVELS_TOPIC, 0) == (0, 2)
            await rig.advance(10)
            assert rig.bodies() == [b"0", b"1", b"2", b"3", b"4"]
            change(rig, "7s")
            found = level_journal.newest(rig.store)
            assert found is not None
            assert found.delivered == {1: 5}

    asyncio.run(steps())


# -- a master that writes no records --------------------------------------------------------------


def send_as_apache(store: MessageStore, level: int) -> int:
    """Append what a master without records appends; return its store time."""
    batch = PutBatch(1)
    properties = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"}
    add_message(store, batch, SCHEDULE_TOPIC, level - 1, properties=properties)
    store.put(batch)
    return int(batch.rows[0]["store_ms"])


def test_an_empty_replica_takes_the_table_of_its_master(tmp_path: Path) -> None:
    with open_store(tmp_path / "m") as master, replica(tmp_path / "r") as (store, tables):
        stored_ms = send_as_apache(master, 2)
        tables.follow("1m 5m", store, master.max_offset)
        feed(store, log_of(master), 0, [500])
        assert codes(store)[2] == [stored_ms + 300_000]


def test_where_two_tables_are_possible_the_longer_delay_counts(tmp_path: Path) -> None:
    """The master was started with another table while the replica was away."""
    clock = FakeClock()
    with open_store(tmp_path / "m", clock) as master:
        with replica(tmp_path / "r", "1m 9m") as (store, tables):
            tables.follow("1m 9m", store, 0)
            times = [send_as_apache(master, level) for level in (1, 2)]
            feed(store, log_of(master), 0, [500])
            times += [send_as_apache(master, level) for level in (1, 2)]
            tables.follow("3m 5m", store, master.max_offset)
            times += [send_as_apache(master, level) for level in (1, 2)]
            feed(store, log_of(master)[store.max_offset :], store.max_offset, [500])
            minutes = {1: (1, 3, 3), 2: (9, 9, 5)}
            for level, delays in minutes.items():
                of_level = times[level - 1 :: 2]
                expected = [at + n * 60_000 for at, n in zip(of_level, delays, strict=True)]
                assert codes(store)[level] == expected
            before = codes(store)
        with replica(tmp_path / "r", "1s") as (store, tables):
            tables.follow("3m 5m", store, store.max_offset)
            assert (tables.history.text, codes(store)) == ("3m 5m", before)


def test_a_record_is_exact_where_the_replica_was_not(tmp_path: Path) -> None:
    history = LevelHistory([LevelText(0, "1m"), LevelText(500, "3m"), LevelText(900, "2m")])
    known = LevelHistory([LevelText(0, "1m"), LevelText(700, "2m")])
    with_known = history.with_known(known, 800)
    assert [(p.from_offset, p.text) for p in with_known.texts] == [(0, "1m"), (700, "2m")]
    assert history.first_difference(with_known) == 500
    later = LevelHistory([LevelText(0, "1m"), LevelText(900, "4m")])
    assert later.with_known(known, 800).texts[-1] == LevelText(900, "4m")
