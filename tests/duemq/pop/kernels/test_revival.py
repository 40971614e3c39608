"""Copies that the kernel makes, against copies made in Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.checkpoints import PopCheckpoint
from duemq.pop.queue_reader import RawRecords
from duemq.pop.revival.retry_copies import RetryCopies
from duemq.registry.managers import Identity
from message_store.log.batch import PutBatch
from message_store.log.record import split_records
from tests.support.encoded_records import encode_record

NOW_MS, POP_MS = 5_000, 1_000
OFFSETS = (3, 7)
LOG_OFFSET = 4_096
RESULTS = ("store_ms", "phys_offset", "queue_offset", "tags_code", "record_size", "queue_slot")
POSITIONS = ("body_pos", "prop_pos", "uniq_pos")
COPIED = {
    "KEYS": st.just("k1 k2"),
    "TAGS": st.sampled_from(["A", "\u00e4\u20ac\U0001f600"]),
    "UNIQ_KEY": st.just("0" * 32),
    "WAIT": st.sampled_from(["true", "false", "falsey"]),
    "DELAY": st.sampled_from(["3", "x"]),
    "DELAYED": st.just("3"),
    "TIMER_DELAY_SEC": st.just("3"),
    "TIMER_DELAY_MS": st.just("3000"),
    "TIMER_DELIVER_MS": st.sampled_from(["4999", "5000", "5001", "x", "-1", "+1", "1 "]),
    "TIMER_OUT_MS": st.just("4000"),
    "TIMER_ENQUEUE_MS": st.just("1"),
    "TIMER_DEQUEUE_MS": st.just("2"),
    "TIMER_ROLL_TIMES": st.just("2"),
    "DUEMQ_DUE_MS": st.just("4999"),
    "REAL_TOPIC": st.just("T"),
    "REAL_QID": st.just("1"),
    "POP_CK": st.just("0 1 2 3 1 b 0 0"),
    "POP_CKS": st.just("0"),
    "__SHARDINGKEY": st.just("s"),
    "_SYS_MSG_PRIORITY_": st.just("3"),
    "INNER": st.just("1"),
    "TRACE_ON": st.just("true"),
    "1ST": st.just("1"),
    "a\u00e4": st.just("v\x01w"),
}
IN_PYTHON = {
    "TRAN_MSG": "true",
    "TIMER_DEL_UNIQKEY": "u",
    "TIMER_OTHER": "u",
    "INNER_NUM": "2",
    "INNER_BASE": "2",
    "TIMER_DELIVER_MS": "0" * 19,
}
HOSTS = [(bytes(range(1, 5)), 10_911), (bytes(range(1, 17)), 10_911)]


class Captured:
    """Put path that records the batches."""

    def put(self, batch: PutBatch) -> None:
        names = [n for n in batch.rows.dtype.names if n not in (*RESULTS, *POSITIONS)]
        self.rows = batch.filled[names].tolist()
        self.texts = [batch.property_text(row) for row in range(batch.count)]
        self.bodies = [batch.body(row) for row in range(batch.count)]
        self.uniq = [
            batch.staging[int(row["uniq_pos"]) :][: int(row["uniq_len"])].tobytes()
            for row in batch.filled
        ]
        self.together = list(batch.together)


def record(
    text: bytes,
    offset: int,
    *,
    reconsume: int = 0,
    host: tuple[bytes, int] = HOSTS[0],
    flags: int = 1,
) -> bytes:
    return encode_record(
        topic="T",
        queue_id=2,
        body=b"body",
        property_text=text,
        queue_offset=offset,
        phys_offset=LOG_OFFSET + offset,
        born_ms=12,
        born_host=host,
        store_ms=13,
        store_host=HOSTS[0],
        flag=7,
        sys_flag=flags,
        reconsume_times=reconsume,
        prepared_offset=-5,
    )


def raw_records(*records: bytes) -> RawRecords:
    log_offsets = np.array([LOG_OFFSET + offset for offset in OFFSETS], np.int64)
    return RawRecords(OFFSETS, log_offsets, np.frombuffer(b"".join(records), np.uint8))


def copies(
    found: RawRecords, host: tuple[bytes, int] = HOSTS[0]
) -> tuple[Captured | None, Captured]:
    """Return the copies of the kernel, None if Python is needed, and the copies of Python."""
    checkpoint = PopCheckpoint("T", "g", 2, 3, POP_MS, 1_000, OFFSETS, "b")
    made: list[Captured | None] = []
    for compiled in (True, False):
        path = Captured()
        batch = RetryCopies(path, Identity("b", "c", 0, host), lambda compiled=compiled: compiled)  # type: ignore[misc]
        batch.add(0, checkpoint, split_records(record(b"", 1)), topic_index=4, now_ms=NOW_MS)
        place = {"topic_index": 5, "now_ms": NOW_MS}
        done = batch.add_raw(0, checkpoint, found, **place)
        if not done:
            batch.add(0, checkpoint, split_records(found.data.tobytes()), **place)
        batch.put()
        made += [path if done or not compiled else None]
    assert made[1] is not None
    return made[0], made[1]


def same(kernel: Captured | None, plain: Captured) -> None:
    assert kernel is not None
    assert vars(kernel) == vars(plain)


def text_of(properties: dict[str, str], *, ended: bool = True) -> bytes:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return (text + ("\x02" if ended and text else "")).encode()


@given(
    st.fixed_dictionaries({}, optional=COPIED).flatmap(
        lambda found: st.permutations(list(found.items())).map(dict)
    ),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
    st.integers(0, 0x7FF),
)
def test_the_kernel_makes_the_copies_that_python_makes(
    properties: dict[str, str],
    ended: bool,
    reconsume: int,
    born: tuple[bytes, int],
    host: tuple[bytes, int],
    flags: int,
) -> None:
    first = record(text_of(properties, ended=ended), 3, reconsume=reconsume, host=born, flags=flags)
    same(*copies(raw_records(first, record(b"KEYS\x01k\x02", 7)), host))


@pytest.mark.parametrize("reconsume", [0, 1])
def test_a_time_of_the_first_pop_is_kept_by_later_pops(reconsume: int) -> None:
    first = record(b"1ST_POP_TIME\x0112\x02TAGS\x01A\x02", 3, reconsume=reconsume)
    kernel, plain = copies(raw_records(first, record(b"", 7)))
    assert (kernel is None) == (reconsume == 0), "Python replaces the value in its place"
    if kernel is not None:
        same(kernel, plain)
    assert plain.texts[1].startswith(b"1ST_POP_TIME\x01" + (b"12", b"1000")[reconsume == 0])


@pytest.mark.parametrize("name", IN_PYTHON)
def test_rare_properties_need_python(name: str) -> None:
    text = text_of({"KEYS": "k", name: IN_PYTHON[name]})
    found = raw_records(record(text, 3), record(b"", 7))
    assert copies(found)[0] is None


@pytest.mark.parametrize("text", [b"\x02KEYS\x01k", b"KEYS\x02", b"\x01k\x02", b"KEYS\x01\x02"])
def test_an_entry_without_name_or_value_needs_python(text: bytes) -> None:
    assert copies(raw_records(record(b"", 3), record(text, 7)))[0] is None


def test_a_damaged_record_is_not_copied() -> None:
    damaged = bytearray(record(b"KEYS\x01k\x02", 7))
    damaged[damaged.index(b"body")] ^= 1
    batch = RetryCopies(Captured(), Identity("b", "c", 0, HOSTS[0]), lambda: True)
    checkpoint = PopCheckpoint("T", "g", 2, 3, POP_MS, 1_000, OFFSETS, "b")
    for data in (bytes(damaged), record(b"", 8)):
        found = raw_records(record(b"", 3), data)
        assert not batch.add_raw(0, checkpoint, found, topic_index=5, now_ms=NOW_MS)
    assert batch.put() == []
