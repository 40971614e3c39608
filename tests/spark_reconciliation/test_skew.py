"""A topic with most of the messages on a cluster of two workers, and a log of many files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.many_findings import fill_late
from duemq_common.topics import SCHEDULE_TOPIC
from message_store import layout
from message_store.log.properties import encode_properties
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planned_store import plan_store
from tests.spark_reconciliation import clusters
from tests.spark_reconciliation.test_cluster import PROGRAM, home
from tests.support.encoded_records import encode_record
from tests.support.written_logs import BLANK, HOST, START_MS

__all__ = ["home"]
MESSAGES, TASKS = 40_000, 8
TOPICS = ("large",) * 90 + tuple(f"small{number}" for number in range(10))
PART_BYTES = 1 << 20
SMALL_PARTS = f"""
import sys
from spark_reconciliation.spark import read
from spark_reconciliation.submit import main
read.PARTITION_BYTES = {PART_BYTES}
raise SystemExit(main(sys.argv[1:]))
"""
"""Program whose driver plans parts as of a log that is 64 times as large."""
FILES, FILE_BYTES = 100_000, 4_096
LEVEL = 18  # 2 h
Stages = dict[int, list[int]]
"""Numbers of records, or of bytes, of the tasks, by stage."""


def submit(
    master: str, store: Path, *more: str, program: str = PROGRAM, options: tuple[str, ...] = ()
) -> tuple[str, ...]:
    submitted = (str(clusters.HOME / "bin" / "spark-submit"), "--master", master)
    words = (*submitted, *clusters.SMALL, *more)
    return (*words, program, str(store), "--ledger", "none", *options)


def logging_to(events: Path) -> list[str]:
    """Return the options that write an event log, with TASKS partitions of a shuffle."""
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": str(TASKS),
    }
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def events_of(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name.startswith(("events_", "app-")):
            yield from map(json.loads, path.read_text().splitlines())


def of_tasks(folder: Path, number_of: Callable[[dict[str, Any]], int]) -> Stages:
    stages: Stages = defaultdict(list)
    for event in events_of(folder):
        if event["Event"] == "SparkListenerTaskEnd":
            stages[event["Stage ID"]].append(number_of(event))
    return stages


def exchanged_records(task: dict[str, Any]) -> int:
    """Return the number of records that a task got from tasks of earlier stages."""
    return int(task["Task Metrics"]["Shuffle Read Metrics"]["Total Records Read"])


def written_records(task: dict[str, Any]) -> int:
    """Return the number of rows that a task wrote into files."""
    return int(task["Task Metrics"]["Output Metrics"]["Records Written"])


def scanned_bytes(task: dict[str, Any]) -> int:
    """Return the bytes of the rows that a task read from the log: all of a task's Python rows if
    it got none from other tasks."""
    if exchanged_records(task):
        return 0
    metrics = task["Task Info"]["Accumulables"]
    name = "data returned from Python workers"
    return sum(int(one["Update"]) for one in metrics if one.get("Name") == name)


def fair(stages: Stages, least: int) -> bool:
    """Return whether there are stages with `least` in all, whose tasks have fair parts of it."""
    large = [got for got in stages.values() if sum(got) >= least]
    return bool(large) and all(
        len(got) >= TASKS and max(got) <= 2 * sum(got) / TASKS for got in large
    )


@pytest.mark.extended
@pytest.mark.spark
def test_no_task_gets_most_of_a_topic(home: Path) -> None:
    """Nine of ten messages are of one topic, and each is a finding.

    Tasks that read the log get pieces of the same number of bytes, whatever their topics.
    """
    events, store = home / "events", home / "store"
    fill_late(store, MESSAGES, TOPICS)
    more = logging_to(events)
    with clusters.cluster(home, workers=2) as master:
        ran = clusters.run(home, *submit(master, store, *more))
    assert json.loads(ran.stdout.splitlines()[-1])["verdicts"] == {"late": MESSAGES}, ran.stderr
    stages = of_tasks(events, exchanged_records)
    assert fair(stages, MESSAGES // 2), stages


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("is_written", [False, True], ids=["counts", "tables"])
def test_tasks_scan_and_write_fair_parts(home: Path, is_written: bool) -> None:
    """Pieces of the log have the same number of bytes, and written rows are not dealt by topic."""
    events, store, program = home / "events", home / "store", home / "program.py"
    program.write_text(SMALL_PARTS)
    fill_late(store, MESSAGES, TOPICS)
    more = logging_to(events)
    options = ("--out", str(home / "verdicts")) if is_written else ()
    with clusters.cluster(home, workers=2) as master:
        words = submit(master, store, *more, program=str(program), options=options)
        ran = clusters.run(home, *words)
    assert json.loads(ran.stdout.splitlines()[-1])["verdicts"] == {"late": MESSAGES}, ran.stderr
    scanned = of_tasks(events, scanned_bytes)
    assert fair(scanned, 8 * MESSAGES), scanned
    if is_written:
        written = of_tasks(events, written_records)
        assert fair(written, MESSAGES), written


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose log has FILES files, with a level message each."""
    root = tmp_path_factory.mktemp("many") / "store"
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    names = {"DELAY": str(LEVEL), "REAL_TOPIC": "T", "REAL_QID": "0"}
    fields = {"topic": SCHEDULE_TOPIC, "queue_id": LEVEL - 1, "body": b"body"}
    fields |= {"born_ms": START_MS, "born_host": HOST, "store_host": HOST}
    fields |= {"property_text": encode_properties(names), "store_ms": START_MS}
    for number in range(FILES):
        base = number * FILE_BYTES
        record = encode_record(**fields, queue_offset=number, phys_offset=base)
        left = FILE_BYTES - len(record)
        data = record + BLANK.pack(left, layout.MAGIC_BLANK)
        (folder / f"{base:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))
    return root


@pytest.mark.extended
def test_a_plan_of_many_files_reads_the_last(
    many_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, read = set[str](), Root.read

    def read_noted(root: Root, path: str, start: int, end: int) -> object:
        paths.add(path)
        return read(root, path, start, end)

    monkeypatch.setattr(Root, "read", read_noted)
    plan = plan_store(0, str(many_files)).plan
    assert len(plan.files) == FILES
    assert {path for path in paths if path.startswith("commitlog")} == {
        f"commitlog/{(FILES - 1) * FILE_BYTES:020d}"
    }
