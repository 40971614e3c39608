"""The kernels compared with naive implementations."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.kernels.texts import DecisionOutput
from delayed_delivery.quarantine import origin_of
from delayed_delivery.redirected import NoTarget
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import decode_record
from message_store.queues.topic_table import TopicTable
from message_store.store import MessageStore
from schedule_service import kernels
from schedule_service.cursor import NEVER_MS
from schedule_service.deliverer import add_delivery, target_of
from tests.support.stores import add_message, open_store

SCHEDULE, HALF, PLAIN = 0, 1, 2
DELAYS = np.array([0, 1_000, 5_000], np.int64)


# -- redirect -------------------------------------------------------------------------------------


def naive_redirect(row: dict[str, int]) -> tuple[int, ...]:
    """Return (topic, queue, real topic, real queue, due delay, report) of one row."""
    level, topic, kind = row["delay_level"], row["topic_index"], row["sys_flag"] & 12
    asis = (topic, row["queue_id"], -1, 0, -1, 0)
    if level == 0 or row["status"] or kind not in (0, 8):
        return asis
    if level == layout.DELAY_ILLEGAL:
        return (*asis[:5], kernels.ILLEGAL)
    if level < 0 or topic == HALF:
        return asis
    held = min(level, 2)
    if topic == SCHEDULE:
        return (*asis[:4], int(DELAYS[held]), 0)
    report = kernels.CLAMPED if level > 2 else 0
    if row["timer_kind"] or row["prop_flags"] & ~layout.PROP_WAIT_FALSE:
        report |= kernels.STRIPPED
    return (SCHEDULE, held - 1, topic, row["queue_id"], int(DELAYS[held]), report)


row_values = st.fixed_dictionaries(
    {
        "delay_level": st.sampled_from([0, 1, 2, 3, 99, -1, layout.DELAY_ILLEGAL]),
        "topic_index": st.sampled_from([SCHEDULE, HALF, PLAIN]),
        "queue_id": st.integers(0, 5),
        "sys_flag": st.sampled_from([0, 1, 4, 8, 12]),
        "status": st.sampled_from([0, 0, 0, 13]),
        "timer_kind": st.sampled_from([0, layout.TIMER_DELAY_SEC, layout.TIMER_ILLEGAL]),
        "prop_flags": st.sampled_from(
            [
                0,
                layout.PROP_REAL_TOPIC,
                layout.PROP_WAIT_FALSE,
                layout.PROP_TIMER_OUT,
                layout.PROP_TIMER_STALE | layout.PROP_WAIT_FALSE,
            ]
        ),
    }
)


@given(st.lists(row_values, max_size=20))
def test_redirect(values: list[dict[str, int]]) -> None:
    rows = np.zeros(len(values) + 1, layout.PUT)
    rows["real_topic_index"], rows["due_delay_ms"] = -1, -1
    for row, value in zip(rows, values, strict=False):
        for name, number in value.items():
            row[name] = number
    expected = [naive_redirect(value) for value in values]
    report = np.full(len(values) + 1, 9, np.uint8)
    reported = kernels.redirect(rows, len(values), SCHEDULE, HALF, DELAYS, report)
    names = ["topic_index", "queue_id", "real_topic_index", "real_queue_id", "due_delay_ms"]
    got = [
        (*(int(row[name]) for name in names), int(outcome))
        for row, outcome in zip(rows[: len(values)], report, strict=False)
    ]
    assert got == expected
    assert reported == sum(row[5] != 0 for row in expected)


# -- track ----------------------------------------------------------------------------------------


def naive_track(
    units: list[tuple[int, ...]], last_due: dict[Any, Any]
) -> tuple[dict[int, tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return ({queue: (first, due, end)}, cuts) of (topic, queue, offset, due, status, kind)."""
    seen, cuts = dict[Any, Any](), []
    for topic, queue, offset, due, status, kind in units:
        if topic != SCHEDULE or status or kind in (4, 12):
            continue
        first = seen.get(queue, (offset, due, 0))
        seen[queue] = (first[0], first[1], offset + 1)
        if due < last_due.get(queue, -NEVER_MS):
            cuts.append((queue, offset, due))
        last_due[queue] = due
    return seen, cuts


@given(
    st.lists(
        st.tuples(
            st.sampled_from([SCHEDULE, PLAIN]),
            st.integers(0, 3),
            st.integers(0, 6),
            st.sampled_from([0, 0, 0, 14]),
            st.sampled_from([0, 0, 8, 4]),
        ),
        max_size=30,
    ),
    st.integers(1, 30),
)
def test_track(values: list[tuple[int, ...]], cuts_max: int) -> None:
    offsets = dict.fromkeys(range(4), 0)
    units = []
    rows = np.zeros(len(values) + 1, layout.PUT)
    for row, (topic, queue, due, status, kind) in zip(rows, values, strict=False):
        row["topic_index"], row["queue_id"], row["tags_code"] = topic, queue, due
        row["queue_offset"], row["status"], row["sys_flag"] = offsets[queue], status, kind
        units.append((topic, queue, offsets[queue], due, status, kind))
        offsets[queue] += 1
    expected, wanted_cuts = naive_track(units, {})
    last = np.full(4, -NEVER_MS, np.int64)
    place, added = np.zeros(4, np.int32), np.zeros((4, 4), np.int64)
    cuts = np.zeros((cuts_max, 3), np.int64)
    n, n_cuts = kernels.track(rows, len(values), SCHEDULE, last, place, added, cuts)
    assert {queue: tuple(found) for queue, *found in added[:n].tolist()} == expected
    assert not place.any()
    assert [tuple(cut) for cut in cuts[:n_cuts].tolist()] == wanted_cuts[:cuts_max]


# -- read_due -------------------------------------------------------------------------------------

TARGETS = ["T", "%RETRY%group", "é-topic", "gone", HALF_TOPIC, SCHEDULE_TOPIC]
QUEUE_IDS = ["0", "3", "+2", "-1", "x", "", "65535", "65536", "99999999999"]
properties = st.fixed_dictionaries(
    {},
    optional={
        "TAGS": st.sampled_from(["TagA", "ü", ""]),
        "KEYS": st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=9),
        "REAL_TOPIC": st.sampled_from(TARGETS),
        "REAL_QID": st.sampled_from(QUEUE_IDS),
        "WAIT": st.just("true"),
        "__CRC32#": st.sampled_from(["8784913581", "1"]),
    },
)
HOSTS = [(b"\x7f\0\0\1", 10911), (bytes(range(16)), 65_535)]
message = st.tuples(
    st.binary(max_size=40),
    properties,
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
    st.booleans(),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    with open_store(tmp_path_factory.mktemp("store"), commitlog_file_bytes=1 << 22) as store:
        for name in TARGETS[:3]:
            store.topics.set_routing(name, write_queues=4, read_queues=4, perm=6)
        store.topics.add(HALF_TOPIC)
        yield store


@given(st.lists(message, min_size=1, max_size=8), st.booleans())
def test_read_due_equals_the_python_path(
    store: MessageStore, messages: list[tuple[Any, ...]], trailing: bool
) -> None:
    schedule = store.topics.add(SCHEDULE_TOPIC)
    batch = PutBatch(8, 1)
    for body, pairs, born, stored, right_queue in messages:
        text = encode_properties(pairs)
        at = batch.add(
            topic_index=schedule,
            queue_id=2 if right_queue else 1,
            body=body,
            properties=text if trailing else text.removesuffix(b"\x02"),
            born_ms=len(body),
            born_host=born,
            store_host=stored,
            flag=7,
            sys_flag=1,
            reconsume_times=3,
        )
        batch.rows[at]["due_delay_ms"] = 10
    store.put(batch)
    units = np.zeros(batch.count, layout.UNIT)
    units["phys_offset"] = batch.filled["phys_offset"]
    units["size"], units["index"] = batch.filled["record_size"], batch.filled["queue_offset"]
    compare_ways(store, units, schedule)


def compare_ways(store: MessageStore, units: npt.NDArray[np.void], schedule: int) -> None:
    topics = store.topics
    file = store.log.file_of(int(units[0]["phys_offset"]))
    source = kernels.Source(schedule, topics.find(HALF_TOPIC), 2, 1, 0, -1)
    rows, scratch = np.zeros(units.size, layout.PUT), np.zeros(1, layout.SCANNED)
    span = (file.base, store.log.end - file.base)
    done = 0
    for unit in units:
        one = np.array([unit])
        count = kernels.read_due(file.data, span, one, topics.arrays, source, scratch, rows[done:])
        phys = int(unit["phys_offset"])
        record = decode_record(store.record_bytes(phys, int(unit["size"])), phys)
        target = target_of(record, topics, 3, routed=True)
        if isinstance(target, NoTarget):
            assert count == 0
            continue
        plain = PutBatch(1, 1)
        add_delivery(plain, record, *target)
        if count == 0:  # Python handles only a property CRC in an unusual place
            assert b"__CRC32#" in record.property_text
            continue
        fast = rows[done]
        names = set(layout.PUT.names) - {"body_pos", "prop_pos", "uniq_pos"}
        for name in sorted(names):
            assert fast[name] == plain.rows[0][name], name
        body = file.data[fast["body_pos"] :][: fast["body_len"]].tobytes()
        text = file.data[fast["prop_pos"] :][: fast["prop_len"]].tobytes()
        assert (body, text) == (plain.body(0), plain.property_text(0))
        done += 1


def test_a_property_crc_at_the_end_is_omitted(store: MessageStore) -> None:
    schedule = store.topics.add(SCHEDULE_TOPIC)
    pairs = {"REAL_TOPIC": "T", "REAL_QID": "1", "__CRC32#": "8784913581"}
    batch = PutBatch(1, 1)
    add_message(store, batch, SCHEDULE_TOPIC, 2, b"hello", properties=pairs)
    store.put(batch)
    unit = np.zeros(1, layout.UNIT)
    unit["phys_offset"], unit["size"] = batch.rows[0]["phys_offset"], batch.rows[0]["record_size"]
    unit["index"] = batch.rows[0]["queue_offset"]
    source = kernels.Source(schedule, store.topics.find(HALF_TOPIC), 2, 1, 0, -1)
    file = store.log.file_of(int(unit["phys_offset"][0]))
    rows, scratch = np.zeros(1, layout.PUT), np.zeros(1, layout.SCANNED)
    span = (file.base, store.log.end - file.base)
    arrays = store.topics.arrays
    assert kernels.read_due(file.data, span, unit, arrays, source, scratch, rows) == 1
    text = file.data[rows[0]["prop_pos"] :][: rows[0]["prop_len"]].tobytes()
    assert text == b"REAL_TOPIC\x01T\x02REAL_QID\x011\x02"


@pytest.mark.parametrize(
    ("due_ms", "delay_ms", "returned", "count"),
    [
        (5_000, 5_000, False, 1),
        (4_999, 5_000, False, 0),
        (5_001, 5_000, False, 0),
        (4_999, -1, False, 1),  # fired
        (7_123, 5_000, True, 1),
        (7_122, 5_000, True, 0),
        (5_000, 5_000, True, 0),
        (7_122, -1, True, 1),
    ],
)
def test_a_unit_with_another_due_time_than_its_record_is_left_to_python(
    store: MessageStore, due_ms: int, delay_ms: int, returned: bool, count: int
) -> None:
    """A record that the timers returned has its due time as last property."""
    schedule, store_ms, batch = store.topics.add(SCHEDULE_TOPIC), store.clock.now_ms(), PutBatch(1)
    pairs = {"REAL_TOPIC": "T", "REAL_QID": "1"}
    pairs |= {"DUEMQ_DUE_MS": str(store_ms + 7_123)} if returned else {}
    origin = {"prepared_offset": -1} if returned else {}
    add_message(store, batch, SCHEDULE_TOPIC, 2, properties=pairs, **origin)
    store.put(batch)
    unit, row = np.zeros(1, layout.UNIT), batch.rows[0]
    unit["phys_offset"], unit["size"] = row["phys_offset"], row["record_size"]
    unit["index"], unit["tags_code"] = row["queue_offset"], store_ms + due_ms
    source = kernels.Source(schedule, store.topics.find(HALF_TOPIC), 2, 1, 0, delay_ms)
    file = store.log.file_of(int(row["phys_offset"]))
    out, scratch = np.zeros(1, layout.PUT), np.zeros(1, layout.SCANNED)
    span = (file.base, store.log.end - file.base)
    args = (file.data, span, unit, store.topics.arrays, source, scratch, out)
    assert kernels.read_due(*args) == count


def test_a_flipped_byte_is_never_delivered_as_another_message(store: MessageStore) -> None:
    """Whatever byte of a record is damaged: the kernel never reads past it, nor a wrong body."""
    schedule = store.topics.add(SCHEDULE_TOPIC)
    batch = PutBatch(1, 1)
    pairs = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1", "TAGS": "A"}
    add_message(store, batch, SCHEDULE_TOPIC, 2, b"hello", properties=pairs)
    store.put(batch)
    row = batch.rows[0]
    start, size = int(row["phys_offset"]), int(row["record_size"])
    source = kernels.Source(schedule, store.topics.find(HALF_TOPIC), 2, 1, 0, -1)
    for position in range(size):
        data = store.log.view(start, size).copy()
        data[position] ^= 0x41
        unit = np.zeros(1, layout.UNIT)
        unit["phys_offset"], unit["size"], unit["index"] = start, size, row["queue_offset"]
        rows, scratch = np.zeros(1, layout.PUT), np.zeros(1, layout.SCANNED)
        padded = np.concatenate([data, np.zeros(400, np.uint8)])
        count = kernels.read_due(
            padded, (start, size), unit, store.topics.arrays, source, scratch, rows
        )
        if count:
            out = rows[0]
            body = data[out["body_pos"] :][: out["body_len"]].tobytes()
            assert (position, body) == (position, b"hello")
            assert out["prop_pos"] + out["prop_len"] <= size, position


def test_a_unit_outside_of_the_bytes_is_unchanged(store: MessageStore) -> None:
    source = kernels.Source(0, 1, 2, 1, 0, -1)
    rows, scratch = np.zeros(1, layout.PUT), np.zeros(1, layout.SCANNED)
    data = np.zeros(500, np.uint8)
    for phys, size in [(-1, 100), (1_000, 100), (100, 2**31 - 1), (100, -5), (100, 0), (420, 100)]:
        unit = np.zeros(1, layout.UNIT)
        unit["phys_offset"], unit["size"] = phys, size
        args = (data, (0, 500), unit, TopicTable().arrays, source, scratch, rows)
        assert kernels.read_due(*args) == 0


# -- count_due -------------------------------------------------------------------------------


def units_of(pairs: list[tuple[int, int]]) -> npt.NDArray[np.void]:
    return np.array([(0, due, size, 0) for due, size in pairs], layout.UNIT)


@pytest.mark.parametrize(
    ("due", "now", "count"),
    [
        ([], 5, 0),
        ([5], 4, 0),
        ([5], 5, 1),
        ([1, 2, 3, 4], 3, 3),
        ([1, 2, 3, 4], 9, 4),
        ([1, 9, 3], 3, 1),  # the third is due after the second
        ([9, 1, 1], 3, 0),
        ([1, 9, 3], 9, 3),
    ],
)
def test_the_due_prefix_is_counted(due: list[int], now: int, count: int) -> None:
    units = units_of([(each, 100) for each in due])
    assert kernels.count_due(units, np.array(due, np.int64), now, 1 << 30) == count


def naive_count_due(pairs: list[tuple[int, int]], now_ms: int, bytes_max: int) -> int:
    count = total = 0
    for due_ms, size in pairs:
        total += size
        if due_ms > now_ms or (count and total > bytes_max):
            break
        count += 1
    return count


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99)), max_size=12),
    st.integers(0, 9),
    st.integers(1, 400),
)
def test_units_of_one_batch(pairs: list[tuple[int, int]], now_ms: int, bytes_max: int) -> None:
    due = np.array([due for due, _ in pairs], np.int64)
    found = kernels.count_due(units_of(pairs), due, now_ms, bytes_max)
    assert found == naive_count_due(pairs, now_ms, bytes_max)


@given(st.lists(st.integers(-20, 20), max_size=12))
def test_legal_and_illegal_due_times(codes: list[int]) -> None:
    out = np.zeros(len(codes), np.int64)
    hashes = kernels.due_times(units_of([(code, 1) for code in codes]), 8, out)
    assert (hashes, out.tolist()) == (sum(-8 <= code < 8 for code in codes), codes)


# -- cancels --------------------------------------------------------------------------------------


def naive_cancel(properties: dict[str, str], level: int) -> dict[str, str]:
    kept = {name: properties[name] for name in ("UNIQ_KEY", "KEYS") if properties.get(name)}
    topic = properties.get("REAL_TOPIC", "")
    return kept | {
        "DUEMQ_DECISION": "cancelled",
        "DUEMQ_TOPIC": topic,
        "DUEMQ_LEVEL": str(level),
    }


CANCELLED = st.lists(
    st.tuples(
        st.integers(1, 18),
        st.binary(max_size=40),
        st.dictionaries(
            st.sampled_from(("UNIQ_KEY", "KEYS", "KEYSX", "TAGS", "REAL_QID", "UNIQ")),
            st.text("aé€😀 :-", min_size=1, max_size=12),
        ),
        st.sampled_from((0, layout.SYS_BORN_IPV6, 1, 4)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(messages=CANCELLED, damaged=st.sets(st.integers(0, 5), max_size=2))
def test_cancels(messages: list[tuple[int, bytes, dict[str, str], int]], damaged: set[int]) -> None:
    with tempfile.TemporaryDirectory() as root, open_store(Path(root)) as store:
        sent, made = PutBatch(8), PutBatch(8)
        for level, body, properties, sys_flag in messages:
            host = (b"\x7f\0\0\1" if sys_flag != layout.SYS_BORN_IPV6 else bytes(15) + b"\1", 77)
            sent.add(
                topic_index=store.topics.add(SCHEDULE_TOPIC),
                queue_id=level - 1,
                body=body,
                properties=encode_properties({"REAL_TOPIC": "T"} | properties),
                born_ms=5,
                born_host=host,
                store_host=(b"\x7f\0\0\1", 10_911),
                sys_flag=sys_flag,
                flag=9,
                reconsume_times=3,
            )
        sent.trusted = made.trusted = True
        store.put(sent)
        offsets = np.append(sent.filled["phys_offset"], [1 << 40, int(store.max_offset)])
        made.count = offsets.size
        made.filled["status"] = 1
        body_pos = made.stage(b"0")
        made.reserve(0, 4_096)
        free_pos = np.array([made.staging_len], np.int64)
        context = kernels.CancelContext(store.topics.add("D"), 1_234, body_pos)
        output, frames = DecisionOutput(made.rows, made.staging, free_pos), one_frame()
        [file] = store.log_files
        order = np.arange(offsets.size)[::-1].copy()
        span = store.written_span(file)
        damaged = {index for index in damaged if index < len(messages) and messages[index][1]}
        for index in damaged:
            long_host = messages[index][3] == layout.SYS_BORN_IPV6
            position = int(offsets[index]) + (100 if long_host else 88)  # of the body
            with file.path.open("r+b") as data:
                data.seek(position)
                data.write(bytes([messages[index][1][0] ^ 1]))
        kernels.make_cancels(file.data, span, order, offsets, context, frames, output)
        skipped = [int(index in damaged) for index in range(len(messages))]
        assert made.filled["status"].tolist() == [*skipped, 1, 1]
        store.put(made)
        for index, (level, _, properties, _) in enumerate(messages):
            if index in damaged:
                continue
            source = store.read_record(int(offsets[index]))
            record = store.read_record(int(made.rows[index]["phys_offset"]))
            assert record.properties == naive_cancel({"REAL_TOPIC": "T"} | properties, level)
            assert (record.topic, record.body, record.born_ms) == ("D", b"0", 1_234)
            assert (record.born_host, record.store_host) == (source.born_host, source.store_host)
            assert record.prepared_offset == origin_of(source.phys_offset)
            assert (record.flag, record.reconsume_times, record.queue_id) == (0, 0, 0)
            assert record.sys_flag == source.sys_flag & layout.SYS_BORN_IPV6


def one_frame() -> npt.NDArray[Any]:
    return np.zeros(1, layout.SCANNED)
