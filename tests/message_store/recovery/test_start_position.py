"""Position in the log at which recovery starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_store.log.commit_log import CommitLog
from message_store.recovery.start_position import file_before
from tests.message_store.recovery.test_recover import FILE_BYTES
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("minutes", "torn", "base"),
    [
        ([0, 1, 2, 3], (), 2),  # as Apache
        ([0, 5, 1, 2], (), 0),  # clock set back: records after the time are in the first file, too
        ([0, 1, 9, 2], (), 1),
        ([0, 1, 2, 9], (1,), 2),  # a file that begins with damage is skipped
        ([0, 1, 2, 2], (1, 2), 3),
        ([9, 0, 1, 2], (), 0),
        ([9, 9, 9, 9], (), 0),
    ],
)
def test_start_of_a_scan(
    tmp_path: Path, minutes: list[int], torn: tuple[int, ...], base: int
) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    for number, minute in enumerate(minutes):
        data = encode_record(
            topic="T",
            queue_id=0,
            queue_offset=number,
            body=b"x",
            property_text=b"",
            phys_offset=number * FILE_BYTES,
            born_ms=1,
            store_ms=1 + minute * MINUTE_MS,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
        data = bytes(len(data)) if number in torn else data
        (folder / f"{number * FILE_BYTES:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))
    log = CommitLog(folder, FILE_BYTES)
    log.load()
    assert file_before(log, 2 * MINUTE_MS + 30_000) == base * FILE_BYTES
    log.close()
