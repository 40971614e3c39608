"""Pre-blanks between the units of a queue are reported, unless a recovery has explained them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from message_store.layout import CQ_UNIT, RECORD_AT, SYS_ROLLBACK, UNIT_BYTES
from message_store.log.gaps import BRIDGE_TOPIC
from message_store.queues.consume_queue import PRE_BLANK
from message_store.verify import verify_store
from message_store.verify.log import LogSummary
from message_store.verify.queues import queue_end
from message_store.verify.report import StoreFinding
from tests.support.stores import open_store, put_one

COUNT = 60
FILE_UNITS = 50


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with open_store(tmp_path) as store:
        for number in range(COUNT):
            put_one(store, "T", 0, b"%d" % number)
    return tmp_path


def make_blank(root: Path, first: int, after: int) -> None:
    for number in range(first, after):
        base = number // FILE_UNITS * FILE_UNITS * UNIT_BYTES
        with (root / "consumequeue" / "T" / "0" / f"{base:020d}").open("r+b") as file:
            file.seek(number * UNIT_BYTES - base)
            file.write(PRE_BLANK.tobytes())


def blanks(root: Path) -> list[StoreFinding]:
    return [found for found in verify_store(root).findings if found.kind == "queue-blank"]


@pytest.mark.parametrize("after", [8, 49, 50, 51, 55])
def test_pre_blanks_between_messages_are_reported(root: Path, after: int) -> None:
    """Also over the border of two files."""
    make_blank(root, 7, after)
    (found,) = blanks(root)
    assert found.severity == "error"
    assert found.file == f"consumequeue/T/0/{after // FILE_UNITS * 1_000:020d}"
    assert found.offset == after % FILE_UNITS * UNIT_BYTES
    assert found.text.startswith(f"{after - 7} units of T queue 0 from queue offset 7 on")
    assert verify_store(root).counts["queue-blank"] == after - 7


def test_units_that_are_missing_at_the_end_of_a_file_are_reported(root: Path) -> None:
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[: 47 * UNIT_BYTES].ljust(len(data), b"\0"))
    findings = [found for found in verify_store(root).findings if found.kind == "queue-hole"]
    (found,) = findings
    assert (found.severity, found.file) == ("error", f"consumequeue/T/0/{0:020d}")
    assert found.offset == 47 * UNIT_BYTES
    assert found.text == "units of T queue 0 are missing from here to the end of the file"


def test_the_end_of_a_queue_is_that_of_its_last_file_if_the_log_has_no_record(root: Path) -> None:
    """Retention may have removed its records."""
    log = LogSummary([])
    assert queue_end(root, log, "T", 0) == COUNT
    assert queue_end(root, log, "T", 1) is None


def test_each_run_of_pre_blanks_is_reported(root: Path) -> None:
    for first in (3, 20, 48):
        make_blank(root, first, first + 4)
    assert len(blanks(root)) == 3


def test_pre_blanks_at_either_end_are_not_reported(root: Path) -> None:
    """They stand for records that retention has removed, or for none."""
    make_blank(root, 0, 9)
    make_blank(root, COUNT - 2, COUNT)
    assert blanks(root) == []


def test_pre_blanks_for_damage_that_a_recovery_moved_away_are_not_reported(root: Path) -> None:
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    start = int(np.fromfile(path, CQ_UNIT)["phys_offset"][8])
    make_blank(root, 7, 10)
    (root / "truncated").mkdir()
    (root / "truncated" / f"{start:020d}").write_bytes(b"damage")
    assert blanks(root) == []
    make_blank(root, 20, 21)
    assert len(blanks(root)) == 1


def test_pre_blanks_for_damage_in_the_log_of_a_master_are_not_reported(tmp_path: Path) -> None:
    """A replica copies the record that replaces it, and has no file of the damaged bytes."""
    with open_store(tmp_path) as store:
        rows = [put_one(store, topic, 0, b"x") for topic in ("T", BRIDGE_TOPIC, "T")]
    path = tmp_path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(int(rows[1]["phys_offset"]) + RECORD_AT.sys_flag)
        file.write(SYS_ROLLBACK.to_bytes(4, "big"))
    queue = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    first, last = queue.read_bytes()[:UNIT_BYTES], queue.read_bytes()[UNIT_BYTES : 2 * UNIT_BYTES]
    queue.write_bytes((first + PRE_BLANK.tobytes() + last).ljust(1_000, b"\0"))
    assert blanks(tmp_path) == []
