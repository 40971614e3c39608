"""Kernels that write decision records, compared with Python on the same records."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.names import CANCELLED_BODY, FIRED_BODY, MOVED_BODY
from delayed_delivery.quarantine import origin_of
from duemq_common.text import java_hash
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.properties import decode_properties
from tests.support.extended import examples
from tests.support.stores import add_message, open_store
from timer_store import layout
from timer_store.pending.decision_records import DecidingRecords

PRECISION_MS = 1_000
BODIES = (CANCELLED_BODY, FIRED_BODY, MOVED_BODY)
STALE = (
    "TIMER_OUT_MS",
    "TIMER_DELIVER_MS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_ROLL_TIMES",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "DUEMQ_DUE_MS",
    "__CRC32#",
)
KEPT = ("UNIQ_KEY", "KEYS", "TAGS", "mine", "TIMER", "TIMER_OUT_MSX")
WORDS = st.text("aé€😀 :-", min_size=1, max_size=12)
ROLLS = st.one_of(WORDS, st.integers(0, 99).map(str))
TARGETS = st.lists(
    st.fixed_dictionaries(
        {"due_ms": st.integers(1, 10**15), "body": st.binary(max_size=300)},
        optional=dict.fromkeys((*KEPT, *STALE), WORDS) | {"TIMER_ROLL_TIMES": ROLLS},
    ),
    min_size=1,
    max_size=12,
)


def naive_marker(properties: dict[str, str], due_ms: int, *, named: bool) -> dict[str, str]:
    unique = properties.get("UNIQ_KEY", "")
    found = {
        "TAGS": "_RECALL_TAG_",
        "TIMER_DEL_UNIQKEY": f"{properties['REAL_TOPIC']}+{unique}",
        "REAL_TOPIC": properties["REAL_TOPIC"],
        "REAL_QID": properties["REAL_QID"],
        "TIMER_OUT_MS": str((due_ms - 1) // PRECISION_MS * PRECISION_MS),
    }
    kept = {name: properties[name] for name in ("UNIQ_KEY", "KEYS") if name in properties}
    return found | (kept if named else {})


def naive_key_marker(properties: dict[str, str], due_ms: int) -> dict[str, str]:
    """Return the marker that names the key alone, for Apache's brokers from 5.4 on."""
    named = {"TIMER_DEL_UNIQKEY": properties["UNIQ_KEY"]}
    return naive_marker(properties, due_ms, named=False) | named


def naive_copy(properties: dict[str, str], due_ms: int) -> dict[str, str]:
    kept = {name: value for name, value in properties.items() if name not in STALE}
    out_ms = (due_ms - 1) // PRECISION_MS * PRECISION_MS
    return kept | {"TIMER_DELIVER_MS": str(due_ms), "TIMER_OUT_MS": str(out_ms)}


def naive_kept_copy(properties: dict[str, str], due_ms: int) -> dict[str, str]:
    """Return the copy of `put_again`, as Apache's TimerMessageStore.convert rolls it."""
    times = properties.get("TIMER_ROLL_TIMES", "0")
    dropped = ("TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "__CRC32#")
    kept = {name: value for name, value in properties.items() if name not in dropped}
    count = int(times) + 1 if times.isascii() and times.isdigit() else 1
    return kept | {"TIMER_ROLL_TIMES": str(count), "DUEMQ_DUE_MS": str(due_ms)}


def put_targets(store: Any, targets: list[dict[str, Any]]) -> Any:
    """Append records of timers; return their `layout.TIMED` rows, in another order."""
    batch = PutBatch(len(targets))
    for target in targets:
        properties = {k: v for k, v in target.items() if k not in ("due_ms", "body")}
        properties |= {"REAL_TOPIC": "T", "REAL_QID": "3"}
        add_message(store, batch, TIMER_TOPIC, 0, target["body"], properties=properties)
    store.put(batch)
    rows = np.zeros(batch.count, layout.TIMED)
    rows["phys_offset"], rows["record_size"] = (
        batch.filled["phys_offset"],
        batch.filled["record_size"],
    )
    rows["due_ms"] = [target["due_ms"] for target in targets]
    return rows[::-1].copy()


def new_units(store: Any, first: int) -> Any:
    found, end = [], store.queue_bounds(TIMER_TOPIC, 0)[1]
    while first < end:  # a read ends with its file
        found.append(store.units(TIMER_TOPIC, 0, first, 1_000))
        first += found[-1].size
    return np.concatenate(found)


def new_records(store: Any, first: int) -> list[Any]:
    return [store.read_record(int(unit["phys_offset"])) for unit in new_units(store, first)]


@settings(max_examples=examples(60), deadline=None)
@given(targets=TARGETS, body=st.sampled_from(BODIES), later_ms=st.integers(1, 10**15))
def test_markers_and_copies(
    targets: list[dict[str, int | bytes | str]], body: bytes, later_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as root, open_store(Path(root)) as store:
        rows = put_targets(store, targets)
        made = DecidingRecords(store, PRECISION_MS)
        count = len(targets)
        olds = new_records(store, 0)[::-1]
        assert made.put_markers(rows, 77, body) == {}
        old_due = dict(zip(rows["phys_offset"].tolist(), rows["due_ms"].tolist(), strict=True))
        times = np.arange(later_ms, later_ms + count)
        assert made.put_copies(rows, times, 77) == {}
        news = new_records(store, count)
        pairs = list(zip(olds, rows["due_ms"].tolist(), strict=True))
        is_named = body == CANCELLED_BODY
        wanted = [(o, naive_marker(o.properties, due_ms, named=is_named)) for o, due_ms in pairs]
        wanted += [
            (o, naive_key_marker(o.properties, due_ms))
            for o, due_ms in pairs
            if "UNIQ_KEY" in o.properties
        ]
        for (old, properties), marker in zip(wanted, news[: len(wanted)], strict=True):
            assert marker.properties == properties
            assert (marker.body, marker.born_ms, marker.queue_id) == (body, 77, 0)
            assert marker.prepared_offset == origin_of(old.phys_offset)
        for old, due_ms, copy in zip(olds, times.tolist(), news[len(wanted) :], strict=True):
            assert copy.properties == naive_copy(old.properties, due_ms)
            assert (copy.body, copy.born_ms, copy.flag) == (old.body, old.born_ms, old.flag)
            assert copy.prepared_offset == origin_of(old.phys_offset)
        assert made.put_again(rows, rows["due_ms"].copy(), 77) == {}
        for old, copy in zip(olds, new_records(store, count + len(news)), strict=True):
            assert copy.properties == naive_kept_copy(old.properties, old_due[old.phys_offset])
            assert (copy.body, copy.born_ms, copy.flag) == (old.body, old.born_ms, old.flag)
            assert copy.prepared_offset == origin_of(old.phys_offset)
        units = new_units(store, count)[: len(news)]
        codes = [java_hash(record.properties.get("TAGS", "")) for record in news]
        assert units["tags_code"].tolist() == codes


@pytest.mark.parametrize("record_size", [-4, -3, -2, -1, 0, 3, 1 << 30])
def test_a_record_of_another_size_than_its_unit_has_is_not_copied(
    tmp_path: Path, record_size: int
) -> None:
    with open_store(tmp_path) as store:
        rows = put_targets(store, [{"due_ms": 5, "body": b"a"}, {"due_ms": 6, "body": b"b"}])
        rows[0]["record_size"] = record_size
        made = DecidingRecords(store, PRECISION_MS)
        assert list(made.put_copies(rows, np.array([50, 60]), 1)) == [0]


def test_a_damaged_record_is_not_copied(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        rows = put_targets(store, [{"due_ms": 5, "body": b"whole"}, {"due_ms": 6, "body": b"torn"}])
        at = int(rows[0]["phys_offset"])  # the second of them
        file = store.log.file_of(at)
        place = bytes(file.data[at : at + int(rows[0]["record_size"])]).index(b"torn")
        file.write(at + place, memoryview(b"TORN"))
        made = DecidingRecords(store, PRECISION_MS)
        assert list(made.put_copies(rows, np.array([50, 60]), 1)) == [0]
        [record] = new_records(store, 2)
        assert decode_properties(record.property_text)["TIMER_DELIVER_MS"] == "60"
