"""A topic with most of the messages on a cluster of two workers, and a log of many files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
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
FILES, FILE_BYTES = 100_000, 4_096
LEVEL = 18  # 2 h
Stages = dict[int, list[int]]
"""Numbers of records of the tasks, by stage."""


def submit(master: str, store: Path, *more: str) -> tuple[str, ...]:
    program = (str(clusters.HOME / "bin" / "spark-submit"), "--master", master)
    return (*program, *clusters.SMALL, *more, PROGRAM, str(store), "--ledger", "none")


def events_of(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name.startswith(("events_", "app-")):
            yield from map(json.loads, path.read_text().splitlines())


def exchanged_records(folder: Path) -> Stages:
    """Return the numbers of records that tasks got from tasks of earlier stages."""
    stages: Stages = defaultdict(list)
    for event in events_of(folder):
        if event["Event"] == "SparkListenerTaskEnd":
            metrics = event["Task Metrics"]["Shuffle Read Metrics"]
            stages[event["Stage ID"]].append(metrics["Total Records Read"])
    return stages


@pytest.mark.extended
@pytest.mark.spark
def test_no_task_gets_most_of_a_topic(home: Path) -> None:
    """Nine of ten messages are of one topic, and each is a finding.

    Tasks that read the log get pieces of the same number of bytes, whatever their topics.
    """
    events, store = home / "events", home / "store"
    events.mkdir()
    fill_late(store, MESSAGES)
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": str(TASKS),
    }
    more = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    with clusters.cluster(home, workers=2) as master:
        ran = clusters.run(home, *submit(master, store, *more))
    assert json.loads(ran.stdout.splitlines()[-1])["verdicts"] == {"late": MESSAGES}, ran.stderr
    large = [got for got in exchanged_records(events).values() if sum(got) >= MESSAGES // 2]
    assert large
    assert all(len(got) == TASKS and max(got) <= 2 * sum(got) / TASKS for got in large), large


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
