"""Read ahead of the log: the thread is woken only when there is something to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_store.log.commit_log import CommitLog
from message_store.log.read_ahead import AHEAD_BYTES, LARGE_BYTES, REFILL_BYTES, ReadAhead
from tests.support.stores import open_store, put_one

FILE_BYTES = AHEAD_BYTES * 4


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    log = CommitLog(tmp_path, FILE_BYTES)
    log.load()
    return log


def reads(ahead: ReadAhead, log: CommitLog, end: int) -> bool:
    """Move the log's end and do the thread's work; return whether it would be woken."""
    log.end = end
    if end >= ahead.wake_at:
        ahead.wake()
    return ahead.work()


ENDS = [
    ("the first append makes the file", 1, True),
    ("what lies ahead is enough", REFILL_BYTES, False),
    ("enough is used", REFILL_BYTES + 1, True),
    ("behind that", 2 * REFILL_BYTES, False),
    ("the end jumps", FILE_BYTES - AHEAD_BYTES, True),
    ("all of the file is there", FILE_BYTES - 1, False),
    ("a new file, not made yet", FILE_BYTES, True),
    ("still not made", FILE_BYTES + 1, True),
]


def test_it_is_woken_when_enough_was_used(log: CommitLog) -> None:
    ahead = ReadAhead(log)
    assert reads(ahead, log, 0)  # no file yet
    log.writable_file()
    found = [(why, reads(ahead, log, end)) for why, end, _ in ENDS]
    log.close()
    assert found == [(why, woken) for why, _, woken in ENDS]


def test_expected_bytes_are_read_once(log: CommitLog) -> None:
    ahead = ReadAhead(log)
    log.writable_file()
    assert reads(ahead, log, 1)
    ahead.expect(2 * AHEAD_BYTES)
    assert reads(ahead, log, 1)
    assert ahead.reached == 1 + 2 * AHEAD_BYTES
    assert reads(ahead, log, AHEAD_BYTES)
    assert ahead.reached == 1 + 2 * AHEAD_BYTES
    log.close()


@pytest.mark.parametrize(
    ("large", "expected", "woken"), [(False, 0, 1), (True, 0, 0), (True, 1 << 18, 1)]
)
def test_a_large_append_wakes_nothing_unless_it_was_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, expected: int, woken: int
) -> None:
    wakes = list[int]()
    with open_store(tmp_path, commitlog_file_bytes=1 << 20, message_bytes_max=1 << 17) as store:
        put_one(store, "T")
        store.read_ahead.stop()  # it changes `wake_at`
        monkeypatch.setattr(store.read_ahead, "wake", lambda: wakes.append(store.max_offset))
        store.read_ahead.wake_at = store.max_offset + 1
        store.read_ahead.expect(expected)
        row = put_one(store, "T", body=bytes(LARGE_BYTES if large else 1_000))
        assert row["status"] == 0
        assert len(wakes) == woken
        put_one(store, "T")  # the next small append wakes it
        assert wakes[-1:] == [store.max_offset]
