"""Comparison of the stores of a broker group."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from duemq_common.clock import FakeClock
from spark_reconciliation.jobs.replicas import COLUMNS, differences, extents
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.spark.read import read_table
from tests.support.stores import open_store, put_one

COUNT = 30


def group_of_two(tmp_path: Path) -> tuple[Path, Path, list[int]]:
    """Write a store and its copy; return both and the log offsets of their records."""
    first, second = tmp_path / "first", tmp_path / "second"
    with open_store(first) as store:
        offsets = [
            int(put_one(store, "T", body=b"body %d" % number)["phys_offset"])
            for number in range(COUNT)
        ]
    shutil.copytree(first, second)
    return first, second, offsets


def compared(session: Any, *roots: Path) -> list[tuple[int, str, list[str]]]:
    paths = [str(root) for root in roots]
    stores = read_table(session, paths, "stores")
    found = differences(read_table(session, paths, "messages", COLUMNS), stores).collect()
    return [(row["phys_offset"], row["verdict"], row["have"]) for row in found]


def write_at(root: Path, offset: int, data: bytes) -> None:
    [file] = sorted((root / "commitlog").iterdir())
    with file.open("r+b") as log:
        log.seek(offset)
        log.write(data)


def test_a_replica_that_lags_has_no_differences(engine: Any, tmp_path: Path) -> None:
    first, second, _ = group_of_two(tmp_path)
    with open_store(first) as store:
        before = store.max_offset
        put_one(store, "T", body=b"one more")
        added = store.max_offset - before
    assert compared(engine, first, second) == []
    stores = read_table(engine, [str(first), str(second)], "stores")
    assert [row["behind"] for row in extents(stores).collect()] == [0, added]


def test_records_that_differ_or_are_missing_are_named(engine: Any, tmp_path: Path) -> None:
    first, second, offsets = group_of_two(tmp_path)
    flag_at, magic_at = 16, 4  # the producer's flag has no checksum
    write_at(second, offsets[7] + flag_at, bytes([0, 0, 0, 1]))
    write_at(second, offsets[20] + magic_at, bytes(4))
    changed, *missing = compared(engine, first, second)
    assert (changed[0], changed[1], len(changed[2])) == (offsets[7], "different", 2)
    assert missing[0] == (offsets[20], "missing", [str(first)])


def test_the_owner_of_a_level_message_is_no_difference(engine: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    properties = {"TAGS": "x", "DELAY": "3", "KEYS": "DELAy"}
    with open_store(first) as store:
        offsets = [
            int(put_one(store, topic, properties=properties)["phys_offset"])
            for topic in ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX", "T")
        ]
    shutil.copytree(first, second)
    [file] = sorted((first / "commitlog").iterdir())
    data = file.read_bytes()
    for offset, old, new in zip(offsets, (b"DELAY", b"DELAy", b"DELAY"), b"yYy", strict=True):
        at = data.index(old, offset) + 4
        write_at(second, at, bytes([new]))
    assert [found[0] for found in compared(engine, first, second)] == offsets[1:]


def test_an_audit_takes_a_group_as_one_store(engine: Any, tmp_path: Path) -> None:
    first, second, offsets = group_of_two(tmp_path)
    other = tmp_path / "other"
    with open_store(other) as store:
        put_one(store, "T", body=b"of another broker")
    with open_store(first) as store:
        put_one(store, "T", body=b"one more")
    request = AuditRequest(stores=(str(second), str(other), str(first)))
    summary = run_audit(engine, request, FakeClock())
    (group,) = summary.groups
    assert (group.store, group.differing, group.examples) == (str(first), 0, [])
    assert summary.clean
    write_at(second, offsets[7] + 16, bytes([0, 0, 0, 1]))
    summary = run_audit(engine, request, FakeClock())
    (group,) = summary.groups
    assert (group.differing, group.examples[0].phys_offset) == (1, offsets[7])
    assert not summary.clean
