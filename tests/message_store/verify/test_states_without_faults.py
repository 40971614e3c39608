"""States of a store that `verify_store` reports as no fault."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from message_store.log.batch import PutBatch
from message_store.verify import verify_store
from message_store.verify.configs import LOCKS_PATH
from tests.message_store.verify.conftest import RECORDS
from tests.message_store.verify.test_verify_store import (
    LOG_BYTES,
    empty_last_unit,
    first_records,
    kinds,
    log_file,
    lose_the_last_log_file,
    overwrite,
    torn_table,
)
from tests.support.stores import add_message, open_store
from tests.support.topic_removal import remove_topic


def test_a_torn_tail_is_the_end_of_the_log(root: Path) -> None:
    report = verify_store(root)
    end = report.figures["log_end"]
    path = sorted((root / "commitlog").iterdir())[-1]
    overwrite(path, end % LOG_BYTES, b"\0\0\1\0half a record")
    (root / "abort").touch()
    report = verify_store(root)
    assert report.figures["log_end"] == end
    assert report.ok
    assert kinds(report, "warning") == {"tail"}


def test_old_records_after_a_cut_are_no_messages(root: Path) -> None:
    """Apache cuts without zeroing: an old record remains behind the new end."""
    end = verify_store(root).figures["log_end"]
    path = sorted((root / "commitlog").iterdir())[-1]
    data = path.read_bytes()
    record = bytearray(log_file(root).read_bytes()[: first_records(root, 1)[0].total_size])
    record[28:36] = (end + 40).to_bytes(8, "big")
    overwrite(path, end % LOG_BYTES, b"\1" * 40 + bytes(record))
    assert len(path.read_bytes()) == len(data)
    report = verify_store(root)
    assert report.ok
    assert kinds(report, "note") == {"stale-tail"}
    assert report.figures["records"] == RECORDS


def test_units_missing_after_a_crash_are_no_error(root: Path) -> None:
    empty_last_unit(root)
    (root / "abort").touch()
    report = verify_store(root)
    assert report.ok
    assert kinds(report, "warning") == {"unit-missing"}


def test_units_ahead_of_a_crashed_log_are_no_error(root: Path) -> None:
    lose_the_last_log_file(root)
    (root / "abort").touch()
    report = verify_store(root)
    assert report.ok
    assert kinds(report, "warning") >= {"unit-behind-log"}


def test_a_torn_table_with_a_backup(root: Path) -> None:
    torn_table(root)
    (root / "config" / "consumerOffset.json.bak").write_text('{"offsetTable":{"T@g":{0:5}}}')
    report = verify_store(root)
    assert report.ok
    assert kinds(report, "warning") == {"config"}


def test_removed_log_files_are_no_fault(root: Path) -> None:
    log_file(root).unlink()
    report = verify_store(root)
    assert report.ok, [str(found) for found in report.findings]
    assert report.figures["units_expired"] > 0
    assert report.figures["index_items_expired"] > 0


def test_records_of_a_deleted_topic_are_no_fault(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T")
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    report = verify_store(root)
    assert report.ok
    assert kinds(report, "note") == {"topic-deleted"}


@pytest.mark.parametrize(("log_end", "ok"), [(1 << 40, True), (0, False)])
def test_a_deleted_and_recreated_empty_topic_is_no_fault(
    root: Path, log_end: int, ok: bool
) -> None:
    """Its table entry exists again; its records in the log are from before the deletion."""
    shutil.rmtree(root / "consumequeue" / "T")
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{}}}')
    deleted = f'{{"deletedTopics":{{"T":{log_end}}}}}'
    (root / "config" / "deletedTopics.json").write_text(deleted)
    report = verify_store(root)
    assert report.ok is ok
    assert kinds(report, "note") == ({"topic-deleted"} if ok else set())
    assert kinds(report, "error") == (set() if ok else {"queue-missing"})


def test_a_deleted_and_recreated_topic_is_no_fault(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T")
    (root / "config" / "duemq.mark").unlink()
    with open_store(root) as store:
        remove_topic(store, "T")
        batch = PutBatch()
        for number in range(30):
            add_message(store, batch, "T", number % 3, properties={"TAGS": "a"})
        store.put(batch)
    report = verify_store(root)
    assert report.ok, [str(found) for found in report.findings]
    assert report.figures["units"] == 30


def test_a_store_in_use_is_reported(root: Path) -> None:
    with open_store(root) as store:
        if f":{(root / 'lock').stat().st_ino} " not in LOCKS_PATH.read_text():
            pytest.skip("this machine does not show its locks")
        assert kinds(verify_store(root), "warning") == {"in-use"}
        assert store.writable
    assert kinds(verify_store(root), "warning") == set()
