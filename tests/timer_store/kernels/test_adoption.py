"""The identity of a record compared with a naive implementation, on random properties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store import layout as store_layout
from message_store.log.record import Record, decode_record
from tests.support.extended import examples
from tests.support.stores import open_store, put_one
from timer_store import layout
from timer_store.enqueue.due_time import number_of
from timer_store.kernels.adoption import ALL, DELIVERED, SPECIAL, identify

MASK, PRIME, START = (1 << 64) - 1, 0x100000001B3, 0xCBF29CE484222325
NAMES = ["TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEQUEUE_MS", "TIMER_DEL_UNIQKEY"]
NAMES += ["TIMER_ROLL_LABEL", "REAL_TOPIC", "REAL_QID", "UNIQ_KEY", "TIMER_OUT", "TAGS", "x"]
NAMES += ["DELAY", "DELAy"]
VALUES = ["1", "2", "T", "T+1", "+1", "-7", "x" * 19, "1700000000000", "é", "+2", "_RECALL_TAG_"]
properties = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))


RECALL = {"TAGS": "_RECALL_TAG_", "REAL_TOPIC": "T", "TIMER_OUT_MS": "1"}


def naive_mix(h: int, values: bytes | list[int]) -> int:
    for value in values:
        h = ((h ^ value) * PRIME) & MASK
    return h


def naive_number(h: int, number: int) -> int:
    return naive_mix(h, (number & MASK).to_bytes(8, "little"))


def signed(h: int) -> int:
    return h - (1 << 64) if h >= 1 << 63 else h


def naive_identify(record: Record, wanted: int) -> tuple[int, ...] | None:
    """Return a row as a tuple, None if there is none."""
    text = record.properties
    out_ms = number_of(text.get("TIMER_OUT_MS"))
    is_level = "TIMER_OUT_MS" not in text and "DELAy" in text
    if is_level:
        out_ms = -2 - record.reconsume_times
    named = {"TIMER_DEQUEUE_MS", "DELAy"} & text.keys()
    if (
        out_ms is None
        or (out_ms < 0 and not is_level)
        or ("REAL_TOPIC" not in text and wanted != DELIVERED)
        or (wanted == DELIVERED and not named and "REAL_TOPIC" in text)
    ):
        return None
    rolls = min(max(number_of(text.get("TIMER_ROLL_TIMES")) or 0, 0), (1 << 31) - 1)
    rolls = rolls or int("TIMER_ROLL_LABEL" in text)
    if wanted == SPECIAL and not rolls and "TIMER_DEL_UNIQKEY" not in text:
        return None
    topic, key = text.get("REAL_TOPIC", "").encode(), text.get("UNIQ_KEY", "").encode()
    place = topic, text.get("REAL_QID", "").encode()
    if wanted == DELIVERED:
        place = record.topic.encode(), str(record.queue_id).encode()
    h = START
    for word in (*place, key):
        h = naive_mix(naive_mix(h, word), [256])
    for number in (out_ms, record.born_ms, record.body_crc, len(record.body)):
        h = naive_number(h, number)
    marker = text.get("TIMER_DEL_UNIQKEY", "").encode()
    recalled = marker == key and text.get("TAGS") == "_RECALL_TAG_"  # as Apache 5.5 recalls
    named = marker if marker and not recalled else (topic + b"+" + key if key else b"")
    name = signed(naive_number(naive_mix(START, named), out_ms)) if named else 0
    if marker and record.prepared_offset < 0:
        name = 0
    return (record.phys_offset, signed(h), out_ms, name, rolls, int(bool(marker)))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(properties, st.sampled_from([0, -5])), max_size=20),
    st.sampled_from([ALL, DELIVERED, SPECIAL]),
)
def test_identities_equal_the_naive_implementation(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[dict[str, str], int]], wanted: int
) -> None:
    with open_store(tmp_path_factory.mktemp("identities")) as store:
        rows = [
            put_one(store, "T", properties=text, prepared_offset=origin) for text, origin in made
        ]
        offsets = np.array([row["phys_offset"] for row in rows] + [3], np.int64)
        out = np.zeros(offsets.size, layout.IDENTIFIED)
        frames = np.zeros(1, store_layout.SCANNED)
        data = store.log.writable_file().data
        count = identify(data, (0, store.log.end), offsets, wanted, frames, out)
        expected = []
        for row in rows:
            at, size = int(row["phys_offset"]), int(row["record_size"])
            record = decode_record(data[at : at + size].data, at)
            expected.append(naive_identify(record, wanted))
        assert [tuple(row) for row in out[:count].tolist()] == [
            w for w in expected if w is not None
        ]


def names_of(tmp_path: Path, *texts: dict[str, str]) -> list[int]:
    with open_store(tmp_path) as store:
        rows = [put_one(store, "T", properties=text) for text in texts]
        offsets = np.array([row["phys_offset"] for row in rows], np.int64)
        out, frames = np.zeros(offsets.size, layout.IDENTIFIED), np.zeros(1, store_layout.SCANNED)
        data = store.log.writable_file().data
        assert identify(data, (0, store.log.end), offsets, ALL, frames, out) == len(texts)
        return out["name"].tolist()


def test_a_recall_of_apache_5_5_names_the_timer_by_its_key_alone(tmp_path: Path) -> None:
    timer = {"REAL_TOPIC": "T", "UNIQ_KEY": "k", "TIMER_OUT_MS": "1"}
    recall = RECALL | {"UNIQ_KEY": "k", "TIMER_DEL_UNIQKEY": "k"}
    of_others = [
        recall | {"UNIQ_KEY": "l"},
        recall | {"TAGS": "T"},
        recall | {"REAL_TOPIC": "U"},
    ]
    name, same, *others = names_of(tmp_path, timer, recall, *of_others)
    assert same == name
    assert name not in others
