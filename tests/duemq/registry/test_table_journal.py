"""The table journal against a fake log: what a start makes of file and records."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from duemq.registry import table_journal
from duemq.registry.journal_log import TableKind
from duemq.registry.table_journal import decode
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from tests.support.table_journals import FakeLog, Master, journal_on, topic

# -- what a start finds ---------------------------------------------------------------------------


def test_a_replica_without_any_file_has_the_table_of_its_master() -> None:
    fake = FakeLog()
    master = Master(fake, {"A": topic("A")}, DataVersion(7, 70))
    master.snapshot()
    master.change(topic("B", 4, attributes={"message.type": "DELAY"}))
    master.change(topic("A", 2))
    master.change(topic("C"), topic("D"))
    master.change(deleted="C")
    replica = Master(fake, {}, DataVersion(0, 999))
    assert replica.file == master.file


def test_a_deleted_topic_that_is_created_again_is_as_it_was_created_last() -> None:
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    for queues in (1, 2, 3):
        master.change(topic("T", queues))
        master.change(deleted="T")
    file = master.file
    master.change(topic("T", 9))
    assert Master(fake, *file).table == {"T": topic("T", 9)}
    master.change(deleted="T")
    assert Master(fake, {"T": topic("T", 3)}, DataVersion(5, 5)).table == {}


def test_a_file_that_is_as_new_is_kept_after_one_read() -> None:
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    for number in range(20):
        master.change(topic(f"T{number}"))
    fake.reads = 0
    again = Master(fake, *master.file)
    assert (again.is_replayed, fake.reads) == (False, 1)
    again.snapshot()
    assert len(fake.bodies) == 21


def test_a_file_that_is_newer_than_the_log_is_kept_and_goes_into_the_log() -> None:
    """Its last changes were accepted, but a truncation or a power cut took them from the log."""
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    master.change(topic("A"))
    master.change(topic("B"))
    del fake.bodies[-1:]
    again = Master(fake, *master.file)
    assert (again.is_replayed, again.table) == (False, master.table)
    again.snapshot()
    assert Master(fake).file == master.file


def test_versions_of_a_replaced_master_do_not_hide_changes_of_its_successor() -> None:
    """Both masters made changes of the same counters; only the successor's are in the log."""
    fake = FakeLog()
    first = Master(fake, epoch=1)
    first.snapshot()
    first.change(topic("Both"))
    kept, file = len(fake.bodies), first.file
    for number in range(5):
        first.change(topic(f"Lost{number}"))
    first.change(deleted="Both")
    del fake.bodies[kept:]
    second = Master(fake, *file, epoch=2)
    second.change(topic("New"))
    assert Master(fake, *first.file).table == {"Both": topic("Both"), "New": topic("New")}
    assert Master(fake, *first.file).version == second.version


def test_without_a_snapshot_newer_changes_are_applied_to_the_file() -> None:
    fake = FakeLog()
    master = Master(fake, {"Old": topic("Old")}, DataVersion(3, 3))
    file = master.file
    for number in range(10):
        master.change(topic(f"T{number}"))
    master.change(deleted="T3")
    fake.first = 4
    again = Master(fake, *file)
    expected = {"Old", *(f"T{number}" for number in (4, 5, 6, 7, 8, 9))}
    assert (set(again.table), again.version) == (expected, master.version)
    fake.reads = 0
    newer = Master(fake, *again.file)
    assert (newer.is_replayed, fake.reads) == (False, 1)


def test_without_a_snapshot_the_last_of_several_changes_of_a_row_is_applied() -> None:
    fake = FakeLog()
    master = Master(fake)
    file = master.file
    master.change(topic("T", 1))
    master.change(topic("T", 2))
    assert Master(fake, *file).table == {"T": topic("T", 2)}


def test_a_table_without_journal_is_its_file() -> None:
    fake = FakeLog(is_copied=False)
    master = Master(fake, {"A": topic("A")}, DataVersion(3, 3))
    master.change(topic("B"))
    master.snapshot()
    assert (fake.bodies, master.is_replayed) == ([], False)


# -- snapshots ------------------------------------------------------------------------------------


def test_changes_before_the_first_replica_are_in_a_snapshot() -> None:
    fake = FakeLog()
    Master(fake).snapshot()
    fake.is_copied = False
    master = Master(fake)
    master.change(topic("A"))
    master.snapshot()
    assert len(fake.bodies) == 1
    fake.is_copied = True
    master.snapshot()
    fake.is_copied = False  # the replica will come back
    master.change(topic("B"))
    assert Master(fake).file == master.file


def test_a_change_between_two_parts_of_a_snapshot_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_journal, "PART_BYTES", 1)
    fake = FakeLog()
    master = Master(fake, {f"T{n}": topic(f"T{n}") for n in range(6)}, DataVersion(1, 1))

    async def main() -> None:
        work = asyncio.create_task(master.journal.snapshot_if_needed(master.table, master.version))
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(fake.bodies) == 3
        master.change(topic("New"))
        master.change(deleted="T0")
        await work

    asyncio.run(main())
    assert len(fake.bodies) == 8
    assert Master(fake).file == master.file


@pytest.mark.parametrize("parts", range(6))
def test_an_incomplete_snapshot_counts_for_nothing(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log ends within it, and the file is one change older."""
    monkeypatch.setattr(table_journal, "PART_BYTES", 1)
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    for number in range(5):
        master.change(topic(f"T{number}"))
    file = master.file
    master.change(topic("Last"))
    master.journal = journal_on(fake)  # it knows no snapshot: one is due
    before = len(fake.bodies)
    master.snapshot()
    assert len(fake.bodies) == before + 6
    del fake.bodies[before + parts :]
    assert Master(fake, *file).file == master.file
    assert Master(fake).file == master.file
    again = Master(fake, *master.file)
    again.snapshot()
    assert len(fake.bodies) == before + parts


def test_a_refused_part_leaves_the_snapshot_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_journal, "PART_BYTES", 1)
    fake = FakeLog(room=2)
    master = Master(fake, {f"T{n}": topic(f"T{n}") for n in range(4)}, DataVersion(1, 1))
    master.snapshot()
    assert len(fake.bodies) == 2
    assert Master(fake).table != master.table
    fake.room = 100
    master.snapshot()
    assert len(fake.bodies) == 6
    assert Master(fake).file == master.file
    master.snapshot()
    assert len(fake.bodies) == 6


def test_a_change_refused_after_its_first_part_is_corrected_by_the_next_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_journal, "PART_BYTES", 1)
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    fake.room = 2
    with pytest.raises(RequestError, match="full"):
        master.change(topic("Stored"), topic("Refused"))
    fake.room = 100
    master.snapshot()
    assert Master(fake).table == {}


def test_a_change_refused_between_two_parts_of_a_snapshot_ends_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_journal, "PART_BYTES", 1)
    fake = FakeLog()
    master = Master(fake, {f"T{n}": topic(f"T{n}") for n in range(6)}, DataVersion(1, 1))

    async def main() -> None:
        work = asyncio.create_task(master.journal.snapshot_if_needed(master.table, master.version))
        for _ in range(3):
            await asyncio.sleep(0)
        fake.room = len(fake.bodies) + 1
        with pytest.raises(RequestError, match="full"):
            master.change(topic("Stored"), topic("Refused"))
        fake.room = 100
        await work

    asyncio.run(main())
    master.snapshot()
    assert Master(fake).table == master.table


def test_a_snapshot_follows_when_retention_has_removed_the_last_one() -> None:
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    master.change(topic("A"))
    master.change(topic("B"))
    master.snapshot()
    assert len(fake.bodies) == 3
    fake.first = 1
    master.snapshot()
    assert len(fake.bodies) == 4
    assert Master(fake).file == master.file


def test_a_snapshot_bounds_what_a_start_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_journal, "CHANGES_MIN", 10)
    fake = FakeLog()
    master = Master(fake)
    for number in range(200):
        master.snapshot()
        master.change(topic("T", 1 + number % 7))
    fake.reads = 0
    assert Master(fake).file == master.file
    assert fake.reads <= 14


# -- refusals and malformed records ---------------------------------------------------------------


def test_a_change_is_refused_while_the_log_takes_nothing() -> None:
    fake = FakeLog(refusal="no lease")
    with pytest.raises(RequestError, match="no lease"):
        journal_on(fake).check()
    journal_on(FakeLog(refusal="no lease", is_copied=False)).check()


def test_an_explicit_change_waits_for_replicas() -> None:
    for is_copied in (False, True):
        fake = FakeLog(is_copied=is_copied)
        asyncio.run(journal_on(fake).confirm())
        assert fake.confirmed == is_copied


MALFORMED = [
    None,
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b'{"kind":"group","version":{},"rows":{}}',
    b'{"kind":"topic","version":3,"rows":{}}',
    b'{"kind":"topic","version":{},"rows":[]}',
    b'{"kind":"topic","version":{"counter":"x"},"rows":{}}',
    b'{"kind":"topic","version":{"counter":99},"base":[],"rows":{}}',
    b'{"kind":"topic","version":{"counter":99},"rows":{"A":3}}',
    b'{"kind":"topic","version":{"counter":99},"rows":{"A":{"topicName":"B"}}}',
    b'{"kind":"topic","version":{"counter":99},"rows":{"../x":{}}}',
    b'{"kind":"topic","version":{"counter":99},"rows":{"A":{"perm":1e9}}}',
    b'{"kind":"topic","version":{"counter":' + b"9" * 5_000 + b'},"rows":{}}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_malformed_records_are_skipped_with_one_notice(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    master.change(topic("A"))
    fake.bodies += [MALFORMED[number]] * 5
    master.change(topic("B"))
    fake.bodies += [MALFORMED[number]] * 5
    with caplog.at_level(logging.ERROR):
        assert Master(fake).file == master.file
    [notice] = caplog.messages
    assert notice.startswith("skipped 10 records of the TOPIC table")
    assert len(notice) < 1_000


def test_a_queue_of_malformed_records_does_not_hold_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_journal, "SKIPPED_MAX", 100)
    fake = FakeLog(bodies=[b"{}"] * 1_000)
    assert not Master(fake).is_replayed
    assert fake.reads <= 101


@pytest.mark.parametrize("base", [-5, 1 << 40, 1, 2])
def test_a_base_that_is_no_snapshot_is_not_used(base: int) -> None:
    fake = FakeLog()
    master = Master(fake)
    master.snapshot()
    file = master.file
    master.change(topic("A"))
    master.change(topic("B"))
    body = fake.bodies.pop()
    assert body is not None
    value = json.loads(body)
    fake.bodies.append(json.dumps(value | {"base": base}).encode())
    assert Master(fake, *file).file == master.file


def test_a_record_is_json_with_apaches_attributes() -> None:
    fake = FakeLog()
    master = Master(fake, version=DataVersion(4, 40, 2))
    master.snapshot()
    master.change(topic("A", 2), deleted="B")
    bodies = [body for body in fake.bodies if body is not None]
    assert [json.loads(body) for body in bodies] == [
        {
            "kind": "topic",
            "version": {"counter": 4, "stateVersion": 2, "timestamp": 40},
            "base": 0,
            "part": 0,
            "last": True,
            "rows": {},
        },
        {
            "kind": "topic",
            "version": {"counter": 5, "stateVersion": 2, "timestamp": 41},
            "base": 0,
            "rows": {"A": topic("A", 2).to_json(), "B": None},
        },
    ]
    decoded = decode(bodies[1], TableKind.TOPIC, TopicConfig.from_json)
    assert decoded.rows == {"A": topic("A", 2), "B": None}
