"""Positions after the end of their queue are findings; positions of real brokers are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_reconciliation.audit.progress_checks import queue_end
from spark_reconciliation.scan.files import Root
from tests.spark_reconciliation.test_bad_files import places
from tests.support.golden_stores import golden_store
from tests.support.plain_store import SCHEDULE, TIMERS, PlainStore, copy_sparse
from tests.support.read_tables import read_rows

pytestmark = pytest.mark.finding("3P1")
OFFSETS, GROUPS, CHECK = "delayOffset.json", "consumerOffset.json", "config/timercheck"
HUGE = 10_000_000


@pytest.fixture
def store(tmp_path: Path) -> PlainStore:
    return PlainStore(copy_sparse(golden_store("apache-5.3.3-clean"), tmp_path / "store"))


def units(store: PlainStore, level: int) -> int:
    return len(store.units(SCHEDULE, level - 1))


def set_cursor(store: PlainStore, level: int, at: int) -> None:
    saved = store.json(OFFSETS)
    saved["offsetTable"][str(level)] = at
    store.write_json(OFFSETS, saved)


@pytest.mark.sampled
@pytest.mark.parametrize(("more", "found"), [(0, 0), (1, 1), (HUGE, 1), (1 << 70, 1)])
def test_a_cursor_after_the_end_of_its_queue_is_a_finding(
    store: PlainStore, more: int, found: int
) -> None:
    level = 5
    count = units(store, level)
    assert count > 0
    set_cursor(store, level, count + more)
    assert len(places(store.root)) == found
    if found:
        (row,) = read_rows(store.root, "findings")
        assert (row["file"], row["kind"]) == (f"config/{OFFSETS}", "impossible")
        assert row["text"] == f"level 5 is at unit {count + more:,} of a queue with {count:,} units"
    # the audit reads every pending message of the level as passed
    passed = read_rows(store.root, "messages", "topic", "queue_id", "passed")
    assert {
        row["passed"] for row in passed if (row["topic"], row["queue_id"]) == (SCHEDULE, 4)
    } == {1}


def test_a_negative_cursor_and_one_of_a_level_without_a_queue(store: PlainStore) -> None:
    set_cursor(store, 5, -1)
    assert len(places(store.root)) == 1
    set_cursor(store, 17, 1)
    set_cursor(store, 99, 1)
    assert {row["text"].partition(" is")[0] for row in read_rows(store.root, "findings")} == {
        "level 5",
        "level 99",
    }


def test_a_killed_broker_may_have_a_cursor_after_its_queue(store: PlainStore) -> None:
    """The queue lacks the newest units; the next start writes them."""
    (store.root / "abort").touch()
    set_cursor(store, 5, units(store, 5) + 3)
    assert places(store.root) == set()


def test_a_position_of_the_timers_after_their_queue(store: PlainStore) -> None:
    count = len(store.units(TIMERS, 0))
    for name, at in (("queue_offset", 16), ("master_queue_offset", 24)):
        with (store.root / CHECK).open("r+b") as file:
            file.seek(at)
            file.write(struct.pack(">q", count + HUGE))
        assert {row["text"] for row in read_rows(store.root, "findings")} >= {
            f"{name} is at unit {count + HUGE:,} of a queue with {count:,} units"
        }


@pytest.mark.parametrize(("more", "found"), [("", {(CHECK, 0, "gap")}), ("duemq.mark", set())])
def test_a_missing_checkpoint_of_the_timers(
    store: PlainStore, more: str, found: set[tuple[str, int, str]]
) -> None:
    """Apache delivers all timers of the log again; DueMQ derives the checkpoint."""
    (store.root / CHECK).unlink()
    (store.root / "config" / more).touch()
    assert places(store.root) == found


def test_the_end_of_a_queue(store: PlainStore) -> None:
    root = Root(str(store.root))
    for topic, queue in store.queues():
        assert queue_end(root, f"consumequeue/{topic}/{queue}") == len(store.units(topic, queue))
    assert queue_end(root, "consumequeue/none/0") == 0


@pytest.mark.sampled
@pytest.mark.parametrize("key", ["GoldenDelay@golden_consumer", f"{SCHEDULE}@CID_RMQ_SYS_TRANS"])
@pytest.mark.parametrize(("more", "found"), [(0, 0), (1, 1), (HUGE, 1), (-HUGE, 1)])
def test_an_offset_of_a_group_outside_its_queue(
    store: PlainStore, key: str, more: int, found: int
) -> None:
    saved, count = store.json(GROUPS), len(store.units(key.partition("@")[0], 1))
    saved["offsetTable"] |= {key: {"1": count + more}, "none@g": {"0": HUGE}}
    store.write_json(GROUPS, saved)
    assert places(store.root) == ({(f"config/{GROUPS}", 0, "impossible")} if found else set())


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP"])
def test_progress_of_the_broker_in_a_missing_topic(store: PlainStore, group: str) -> None:
    saved = store.json(GROUPS)
    saved["offsetTable"][f"none@{group}"] = {"0": 1}
    store.write_json(GROUPS, saved)
    assert {row["text"] for row in read_rows(store.root, "findings")} == {
        f"group {group} is at unit 1 of a queue with 0 units"
    }
