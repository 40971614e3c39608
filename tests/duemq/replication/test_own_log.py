"""The last record before a log offset, compared with a walk over the whole log."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.replication.own_log import record_before
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import RECORD_AT
from message_store.store import MessageStore
from tests.message_store.replication.test_raw_append import FILE_BYTES, fill
from tests.support.stores import open_store, put_one


def records_of(store: MessageStore) -> dict[int, int]:
    """Return end -> start of each record."""
    return {
        int(row["phys_offset"] + row["record_size"]): int(row["phys_offset"])
        for rows in store.scan(store.min_offset)
        for row in rows
    }


def test_the_last_record_before_an_offset(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert record_before(store, 0) is None
        fill(store, 400)
        records = records_of(store)
        ends = sorted(records)
        places = [*ends[::37], ends[-1], FILE_BYTES, 2 * FILE_BYTES]
        places += [end + 1 for end in ends[:-1:53]]  # inside a record
        for offset in places:
            end = max(each for each in ends if each <= offset)
            found = record_before(store, offset)
            assert found is not None
            assert found.start == records[end]
            assert found.end == end
            assert int.from_bytes(found.data[:4]) == len(found.data)
            assert found.letter_at == -1
        assert record_before(store, ends[0] - 1) is None


@pytest.mark.parametrize("field", ["magic", "phys_offset"])
def test_a_last_record_that_cannot_be_read_is_not_known(tmp_path: Path, field: str) -> None:
    with open_store(tmp_path) as store:
        fill(store, 20)
        at = store.last_record + getattr(RECORD_AT, field)
        with next((tmp_path / "commitlog").iterdir()).open("r+b") as file:
            file.seek(at)
            file.write(b"x")
        assert record_before(store, store.max_offset) is None


def test_the_letter_of_a_level_message(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for topic in ("T", SCHEDULE_TOPIC):
            put_one(store, topic, properties={"TAGS": "DELAY", "DELAY": "3", "REAL_QID": "0"})
            found = record_before(store, store.max_offset)
            assert found is not None
            at = found.data.index(b"DELAY\x013") + 4 if topic == SCHEDULE_TOPIC else -1
            assert found.letter_at == at
