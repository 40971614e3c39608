"""Conversion of level records to timers: the kernel compared with Python, and the changed byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.redirected import renamed
from duemq_common.text import java_hash
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.block_sums import DIRECTORY as SUMS
from message_store.log.block_sums import changed_blocks
from tests.support.stores import open_store, put_one
from timer_store import layout
from timer_store.dequeue.original_properties import kind_of
from timer_store.enqueue.level_records import POPULATE_UNITS, LevelRecords, due_times
from timer_store.layout import FROM_LEVEL, FROM_ROUTE, FROM_TIMER, LOWER_Y, UPPER_Y

LEVEL = 3
TEXTS: dict[str, tuple[dict[str, str], bool]] = {
    "plain": ({"DELAY": "3"}, True),
    "with others": ({"A": "b", "DELAY": "3", "KEYS": "DELAY"}, True),
    "both names": ({"DELAY": "3", "DELAy": "x"}, False),
    "none": ({"KEYS": "k"}, False),
    "a CRC of its properties": ({"DELAY": "3", "__CRC32#": "0123456789"}, False),
}


@pytest.mark.parametrize(("text", "renames"), TEXTS.values(), ids=TEXTS)
def test_one_byte_changes_and_is_restored(
    text: dict[str, str], renames: bool, tmp_path: Path
) -> None:
    with open_store(tmp_path) as store:
        held = text | {"REAL_TOPIC": "Real", "REAL_QID": "2"}
        row = put_one(store, SCHEDULE_TOPIC, LEVEL - 1, b"body", properties=held)
        before = store.read_record(int(row["phys_offset"])).property_text
        records = LevelRecords(store)
        [timed], following = records.read(LEVEL, 0, 1, {0: 777}, name=LOWER_Y)
        assert following == 1
        assert (timed["due_ms"], timed["kind"]) == (777, layout.TIMED_PLAIN)
        assert (timed["phys_offset"], timed["record_size"]) == (
            row["phys_offset"],
            row["record_size"],
        )
        assert timed["topic_hash"] == java_hash("Real")
        assert timed["topic_index"] == store.topics.find("Real")
        over = store.read_record(int(row["phys_offset"])).property_text
        assert over == (before.replace(b"DELAY\x013", b"DELAy\x013", 1) if renames else before)
        assert records.unnamed == records.fixed == (not renames)
        records.read(LEVEL, 0, 1, {})
        assert (records.unnamed, records.fixed) == ((0, 0) if renames else (1, 2))
        records.read(LEVEL, 0, 1, {}, name=UPPER_Y)
        assert store.read_record(int(row["phys_offset"])).property_text == before


@pytest.mark.parametrize(("text", "renames"), TEXTS.values(), ids=TEXTS)
def test_records_read_before_are_renamed_by_offset(
    text: dict[str, str], renames: bool, tmp_path: Path
) -> None:
    """Records with the property name lie in two log files, with others between them."""
    with open_store(tmp_path, commitlog_file_bytes=4_096) as store:
        held = {"REAL_TOPIC": "Real", "REAL_QID": "2"}
        texts = [text, {"DELAY": "9"}] * 12
        rows = [
            put_one(store, SCHEDULE_TOPIC, LEVEL - 1, b"b" * 200, properties=held | each)
            for each in texts
        ]
        assert len(store.log.files) > 1
    with open_store(tmp_path, commitlog_file_bytes=4_096) as store:
        before = [store.read_record(int(row["phys_offset"])).property_text for row in rows]
        records, names, at = LevelRecords(store), [], 0
        found = []
        while at < len(rows):
            timed, at = records.read(LEVEL, at, len(rows), {}, names=names)
            found.append(timed)
        records.set_letter(np.concatenate(found), np.concatenate(names), LOWER_Y)
        after = [store.read_record(int(row["phys_offset"])).property_text for row in rows]
        changed = [
            old.replace(b"DELAY\x01", b"DELAy\x01", 1) if renames or n % 2 else old
            for n, old in enumerate(before)
        ]
        assert after == changed
        assert records.unnamed == (0 if renames else 12)
        pieces = [(file.base, file.pages.data) for file in store.log.files]
        assert list(changed_blocks(tmp_path / SUMS, pieces)) == []


def test_letters_of_many_records_change_in_pages_that_were_read_and_written_before(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path) as store:
        for _ in range(POPULATE_UNITS + 1):
            put_one(store, SCHEDULE_TOPIC, LEVEL - 1, b"body", properties={"DELAY": "3"})
        records, count = LevelRecords(store), POPULATE_UNITS + 1
        records.read(LEVEL, 7, 8, {}, name=LOWER_Y)
        for letter in (LOWER_Y, UPPER_Y):
            timed, _ = records.read(LEVEL, 0, count, {}, name=letter)
            texts = {store.read_record(offset).property_text for offset in timed["phys_offset"]}
            assert [text.startswith(b"DELA%c\x013" % letter) for text in texts] == [True]


def test_an_unreadable_record_is_a_timer_without_a_topic(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, SCHEDULE_TOPIC, LEVEL - 1, b"body", properties={"DELAY": "3"})
        row = put_one(store, SCHEDULE_TOPIC, LEVEL - 1, b"body", properties={"DELAY": "3"})
        file = store.log.files[0]
        file.write(int(row["phys_offset"]) + 4, b"\0\0\0\0")  # its magic code
        rows, _ = LevelRecords(store).read(LEVEL, 0, 2, {})
        assert rows["topic_index"].tolist() == [-1, -1]
        assert rows["kind"].tolist() == [layout.TIMED_PLAIN] * 2


@given(st.lists(st.integers(-(1 << 62), 1 << 62), max_size=9), st.integers(0, 8), st.integers())
def test_due_times_of_transferred_messages_are_valid_for_timers(
    codes: list[int], at: int, promised: int
) -> None:
    units: Any = np.zeros(len(codes), [("tags_code", "i8")])
    units["tags_code"] = codes
    promised = max(min(promised, 1 << 62), -(1 << 62))
    expected = [promised if number == at else code for number, code in enumerate(codes)]
    found = due_times(units, 100, {100 + at: promised}).tolist()
    assert found == [min(max(due_ms, 1), layout.DUE_MS_MAX) for due_ms in expected]


names = st.sampled_from(
    [b"DELAY\x013", b"DELAy\x013", b"DELAY\x01", b"DELAYS\x011", b"A\x01b", b""]
)


@given(st.lists(names, max_size=5))
def test_only_a_single_entry_is_renamed(entries: list[bytes]) -> None:
    text = b"\x02".join(entries)
    both = [entry for entry in entries if entry in (b"DELAY\x013", b"DELAy\x013")]
    expected = text.replace(b"DELAy\x013", b"DELAY\x013") if len(both) == 1 else text
    assert renamed(text, b"DELAy", b"DELAY") == expected


@pytest.mark.parametrize(
    ("topic", "text", "kind"),
    [
        (SCHEDULE_TOPIC, {"DELAY": "3"}, FROM_LEVEL),
        (TIMER_TOPIC, {"DELAy": "3", "TIMER_OUT_MS": "1", "DUEMQ_DUE_MS": "2"}, FROM_ROUTE),
        (TIMER_TOPIC, {"DELAy": "3", "TIMER_OUT_MS": "1"}, FROM_TIMER),
        (TIMER_TOPIC, {"DELAy": "3", "TIMER_DELAY_MS": "1", "DUEMQ_DUE_MS": "2"}, FROM_TIMER),
        (TIMER_TOPIC, {"TIMER_OUT_MS": "1", "DUEMQ_DUE_MS": "2"}, FROM_TIMER),
    ],
)
def test_kind_of_a_record(topic: str, text: dict[str, str], kind: int, tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        row = put_one(store, topic, properties=text)
        assert kind_of(store.read_record(int(row["phys_offset"]))) == kind
