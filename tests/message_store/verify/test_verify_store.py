"""`verify_store`: it finds all faults, reports no false ones and writes nothing."""

from __future__ import annotations

import hashlib
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.errors import UsageError
from message_store import layout
from message_store.log.record import decode_record
from message_store.verify import Report, verify_store
from tests.message_store.verify.conftest import RECORDS
from tests.support.golden_stores import (
    ALL_STORES,
    ROCKSDB_VERSION,
    GoldenStore,
    copy_golden_store,
    golden_store,
)
from tests.support.stores import open_store

LOG_BYTES = 65_536
UNIT = layout.CQ_UNIT.itemsize


def log_file(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * LOG_BYTES:020d}"


def queue_file(root: Path, queue_id: int = 0, number: int = 0) -> Path:
    return root / "consumequeue" / "T" / str(queue_id) / f"{number * 1_000:020d}"


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def first_records(root: Path, count: int) -> list[Any]:
    data = memoryview(log_file(root).read_bytes())
    found, at = list[Any](), 0
    while len(found) < count:
        found.append(decode_record(data[at:], at))
        at += found[-1].total_size
    return found


def kinds(report: Report, severity: str) -> set[str]:
    return {found.kind for found in report.findings if found.severity == severity}


def digests(root: Path) -> dict[str, tuple[str, float]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def log_files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


# -- stores that are right ----------------------------------------------------------------------


@pytest.mark.parametrize("golden", ALL_STORES, ids=str)
def test_golden_stores_have_no_errors(golden: GoldenStore) -> None:
    report = verify_store(golden_store(golden.name))
    assert report.ok, [str(found) for found in report.findings]
    figures = report.figures
    assert figures["records"] == figures["units"] > 100
    holes = 58 if golden.name == "apache-5.3.3-clean" else 0  # its broker had crashed earlier
    assert figures["keys_missing"] == holes
    assert kinds(report, "warning") == ({"key-missing"} if holes else set())
    assert ("abort" in report.counts) == (not golden.clean)


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb-separate", "combined"])
def test_queues_in_rocksdb_are_not_checked(tmp_path: Path, name: str) -> None:
    root = copy_golden_store(f"apache-{ROCKSDB_VERSION}-{name}", tmp_path)
    report = verify_store(root)
    assert report.ok, [str(found) for found in report.findings]
    is_checked = not any("they are not checked" in found.text for found in report.findings)
    assert is_checked == (report.figures["units"] > 0) == name.startswith("combined")


def test_our_store_has_no_findings(root: Path) -> None:
    report = verify_store(root)
    assert report.findings == []
    assert report.figures["records"] == report.figures["units"] == RECORDS
    assert report.figures["index_items"] == RECORDS * 2
    assert report.figures["log_files"] > 1
    assert report.to_json()["ok"] is True


def test_nothing_is_written(root: Path) -> None:
    before = digests(root)
    for path in [root, *root.rglob("*")]:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        verify_store(root)
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert digests(root) == before


def test_progress_is_reported(root: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    verify_store(root, lambda *step: seen.append(step))
    assert {phase for phase, _, _ in seen} == {"commit log", "consume queues", "index"}
    assert all(0 <= done <= total for _, done, total in seen)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a store"):
        verify_store(tmp_path)


def test_a_log_elsewhere_is_read_there(root: Path) -> None:
    (root / "commitlog").rename(root.parent / "log")
    assert verify_store(root, commitlog=root.parent / "log").findings == []


# -- one fault each -----------------------------------------------------------------------------


def flip_body(root: Path) -> None:
    overwrite(log_file(root), 90, b"\xff")


def zero_two_records(root: Path) -> None:
    records = first_records(root, 12)
    size = records[11].phys_offset - records[10].phys_offset
    overwrite(log_file(root), records[10].phys_offset, bytes(size))


def zero_a_file_end(root: Path) -> None:
    overwrite(log_file(root), 60_000, bytes(LOG_BYTES - 60_000))


def lose_first_log_pages(root: Path) -> None:
    overwrite(log_file(root), 0, bytes(4_096))


def lose_a_log_file(root: Path) -> None:
    log_file(root, 1).unlink()


def lose_the_last_log_file(root: Path) -> None:
    sorted((root / "commitlog").iterdir())[-1].unlink()


def shorten_a_log_file(root: Path) -> None:
    with log_file(root).open("r+b") as file:
        file.truncate(LOG_BYTES - 4_096)


def illegal_queue_id(root: Path) -> None:
    overwrite(log_file(root), 12, b"\x7f\xff\xff\xff")


def wrong_queue_offset(root: Path) -> None:
    overwrite(log_file(root), first_records(root, 31)[30].phys_offset + 20, bytes(8))


def empty_unit(root: Path) -> None:
    overwrite(queue_file(root), 7 * UNIT, bytes(UNIT))


def empty_last_unit(root: Path) -> None:
    path = sorted(queue_file(root).parent.iterdir())[-1]
    units = np.frombuffer(path.read_bytes(), layout.CQ_UNIT)
    overwrite(path, (np.count_nonzero(units["size"]) - 1) * UNIT, bytes(UNIT))


def unit_of_another(root: Path) -> None:
    overwrite(queue_file(root), 7 * UNIT, queue_file(root).read_bytes()[8 * UNIT : 9 * UNIT])


def unit_of_another_queue(root: Path) -> None:
    overwrite(queue_file(root, 0), 7 * UNIT, queue_file(root, 1).read_bytes()[7 * UNIT : 8 * UNIT])


def unit_between_records(root: Path) -> None:
    overwrite(queue_file(root), 7 * UNIT + 7, b"\x01")


def unit_of_wrong_size(root: Path) -> None:
    overwrite(queue_file(root), 7 * UNIT + 11, b"\xfe")


def unit_with_wrong_code(root: Path) -> None:
    overwrite(queue_file(root), 7 * UNIT + 19, b"\xfe")


def lose_a_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T" / "1")


def lose_a_queue_file(root: Path) -> None:
    queue_file(root, 1, 1).unlink()


def lose_the_last_queue_file(root: Path) -> None:
    sorted((root / "consumequeue" / "T" / "1").iterdir())[-1].unlink()


def foreign_queue_file(root: Path) -> None:
    with queue_file(root).open("r+b") as file:
        file.truncate(990)


def item_of_another_record(root: Path) -> None:
    at = layout.INDEX_HEADER.itemsize + 50 * 4 + 5 * 20 + 4
    overwrite(
        index_files(root)[0], at, first_records(root, 150)[149].phys_offset.to_bytes(8, "big")
    )


def item_between_records(root: Path) -> None:
    at = layout.INDEX_HEADER.itemsize + 50 * 4 + 5 * 20 + 4
    overwrite(index_files(root)[0], at, (4_711).to_bytes(8, "big"))


def empty_slots(root: Path) -> None:
    overwrite(index_files(root)[0], layout.INDEX_HEADER.itemsize, bytes(10 * 4))


def cyclic_chain(root: Path) -> None:
    at = layout.INDEX_HEADER.itemsize + 50 * 4 + 150 * 20 + 16
    overwrite(index_files(root)[0], at, (150).to_bytes(4, "big"))


def wrong_header(root: Path) -> None:
    overwrite(index_files(root)[0], 16, (4_711).to_bytes(8, "big"))


def index_without_header(root: Path) -> None:
    index_files(root)[0].write_bytes(b"\0" * 39)


def torn_table(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5,')


def table_of_another_kind(root: Path) -> None:
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":[1,2]}')


ERRORS: list[tuple[Callable[[Path], None], set[str]]] = [
    (flip_body, {"record-crc"}),
    (zero_two_records, {"log-gap", "unit-record", "item-record"}),
    (zero_a_file_end, {"log-gap", "unit-record", "item-record"}),
    (lose_first_log_pages, {"log-gap", "unit-record", "item-record"}),
    (lose_a_log_file, {"missing-file", "unit-record", "item-record"}),
    (lose_the_last_log_file, {"unit-behind-log"}),
    (shorten_a_log_file, {"file-size", "log-gap", "unit-record", "item-record"}),
    (illegal_queue_id, {"record-queue", "unit-mismatch"}),
    (wrong_queue_offset, {"unit-mismatch", "unit-missing"}),
    (empty_unit, {"queue-hole", "unit-missing"}),
    (empty_last_unit, {"unit-missing"}),
    (unit_of_another, {"unit-mismatch", "unit-missing"}),
    (unit_of_another_queue, {"unit-mismatch", "unit-missing"}),
    (unit_between_records, {"unit-record", "unit-missing"}),
    (unit_of_wrong_size, {"unit-mismatch"}),
    (unit_with_wrong_code, {"unit-code"}),
    (lose_a_queue, {"queue-missing"}),
    (lose_a_queue_file, {"missing-file", "unit-missing"}),
    (lose_the_last_queue_file, {"unit-missing"}),
    (foreign_queue_file, {"file-size", "unit-missing"}),
    (item_of_another_record, {"item-key"}),
    (item_between_records, {"item-record"}),
    (empty_slots, {"index-chain"}),
    (cyclic_chain, {"index-chain"}),
    (wrong_header, {"index-shape"}),
    (index_without_header, {"index-size"}),
    (torn_table, {"config"}),
    (table_of_another_kind, {"config"}),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("plant", "expected"), ERRORS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_fault_is_found(root: Path, plant: Callable[[Path], None], expected: set[str]) -> None:
    before = log_files(root)
    plant(root)
    after = log_files(root)
    is_of_log = any(  # a file that is gone or short has no block to compare
        len(data) == len(before[name]) and data != before[name] for name, data in after.items()
    )
    report = verify_store(root)
    wanted = expected | {"log-block"} if is_of_log else expected
    assert kinds(report, "error") == wanted, [str(found) for found in report.findings]
    assert not report.ok


def test_a_finding_has_its_position(root: Path) -> None:
    lost = first_records(root, 22)[21]
    flip_body(root)
    unit_of_another(root)
    report = verify_store(root)
    places = {found.kind: (found.file, found.offset) for found in report.findings}
    assert places["record-crc"] == (f"commitlog/{0:020d}", 0)
    assert places["unit-mismatch"] == (f"consumequeue/T/0/{0:020d}", 7 * UNIT)
    assert places["unit-missing"] == (f"commitlog/{0:020d}", lost.phys_offset)
    (text,) = [found.text for found in report.findings if found.kind == "unit-missing"]
    assert text.startswith(f"the record at log offset {lost.phys_offset} has no unit in T queue 0")


def test_every_lost_message_of_a_gap_is_reported(root: Path) -> None:
    zero_two_records(root)
    report = verify_store(root)
    assert report.counts["log-gap"] == 1
    (found,) = [found for found in report.findings if found.kind == "unit-record"]
    assert found.text.startswith("T queue 1, queue offset 3: there is no record at log offset")


# -- what is no fault, and what the next start repairs ------------------------------------------


def test_damage_bridged_by_a_recovery_is_known(root: Path) -> None:
    zero_two_records(root)
    (root / "abort").touch()
    (root / "config" / "duemq.mark").unlink()
    with open_store(root):
        pass
    report = verify_store(root)
    assert report.ok, [str(found) for found in report.findings]
    assert kinds(report, "note") == {"truncated"}
    assert report.figures["index_items_of_damage"] == 2


def test_due_times_are_checked_in_their_topic(tmp_path: Path) -> None:
    """4.9.2 to 4.9.8 recover level messages with the tag's hash as the due time, which is found."""
    shutil.copytree(golden_store("apache-4.9.7-clean"), tmp_path / "store")
    queue = tmp_path / "store" / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "17" / f"{0:020d}"
    overwrite(queue, 12, bytes(8))
    report = verify_store(tmp_path / "store")
    assert kinds(report, "error") == {"unit-code"}
    assert report.counts["unit-code"] == 1  # not one for each level message


def test_a_checkpoint_ahead_of_the_log_is_reported(root: Path) -> None:
    ahead = (1 << 50).to_bytes(8, "big")
    overwrite(root / "checkpoint", 8, ahead)
    report = verify_store(root)
    assert [found.text[:24] for found in report.findings] == ["the time for the queues "]
    overwrite(root / "checkpoint", 8, bytes(8))
    for confirmed in (1 << 50, -1):
        overwrite(root / "checkpoint", 32, confirmed.to_bytes(8, "big", signed=True))
        report = verify_store(root)
        assert [found.text[:24] for found in report.findings] == ["the log is confirmed up "]
