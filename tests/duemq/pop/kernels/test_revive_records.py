"""Records that the kernel writes, against records that Python encodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.checkpoints import Acknowledgement, PopCheckpoint
from duemq.pop.revive_records import NAME_CHARS_MAX, ReviveRecords, texts_of
from duemq.registry.managers import Identity
from message_store.log.batch import PutBatch

HOSTS = [(bytes(range(1, 5)), 10_911), (bytes(range(1, 17)), 10_911)]
POSITIONS = ("body_pos", "prop_pos", "uniq_pos")
NAMES = st.sampled_from(
    ["T", "g", "%RETRY%g_T", "ä€😀", 'q"\\/', "é\x00", "", "a\x01b", "a\x02b", "\ud800", "n" * 200]
)
NUMBERS = st.integers(0, 10**18 - 1) | st.sampled_from([0, 1, 9, 10, 999, 1_000, 10**17])
OFFSETS = st.lists(NUMBERS, min_size=1, max_size=40, unique=True).map(tuple)
CHECKPOINTS = st.builds(
    PopCheckpoint,
    topic=NAMES,
    group=NAMES,
    queue_id=st.integers(0, 2**31 - 1),
    start_offset=NUMBERS,
    pop_ms=NUMBERS,
    invisible_ms=NUMBERS,
    offsets=OFFSETS,
    broker_name=NAMES,
    suspended=st.booleans(),
)
ACKS = st.builds(
    Acknowledgement,
    topic=NAMES,
    group=NAMES,
    queue_id=st.integers(0, 2**31 - 1),
    start_offset=NUMBERS,
    pop_ms=NUMBERS,
    offsets=OFFSETS,
    broker_name=NAMES,
    due_ms=NUMBERS | st.just(2 * 10**18),
)
ENTRIES = st.lists(st.tuples(st.integers(0, 7), CHECKPOINTS | ACKS), max_size=6)


def batch_of(
    entries: list[tuple[int, PopCheckpoint | Acknowledgement]],
    host: tuple[bytes, int],
    *,
    compiled: bool,
) -> PutBatch | None:
    """Return a batch with the entries after another row; or the error of encoding."""
    identity = Identity("test", "c", 0, host)
    batch = PutBatch(2)
    records = ReviveRecords(identity, 5)
    try:
        records.add(batch, [(1, ACK)], 1, compiled=False)
        records.add(batch, entries, 1_234, compiled=compiled)
    except UnicodeEncodeError:
        return None
    return batch


ACK = Acknowledgement("T", "g", 2, 17, 1_000, (17,), "b", 61_000)


def rows_of(batch: PutBatch) -> list[tuple[dict[str, int], bytes, bytes, bytes]]:
    """Return everything that a batch's rows contain, with texts in place of their positions."""
    found = []
    for row in range(batch.count):
        columns = {
            name: batch.rows[row][name].item()
            for name in batch.rows.dtype.names
            if name not in POSITIONS
        }
        start = int(batch.rows[row]["uniq_pos"])
        unique = batch.staging[start : start + columns["uniq_len"]].tobytes()
        found.append((columns, batch.body(row), batch.property_text(row), unique))
    return found


@pytest.mark.parametrize("host", HOSTS, ids=["IPv4", "IPv6"])
@given(entries=ENTRIES)
def test_rows_equal_those_of_python(
    entries: list[tuple[int, PopCheckpoint | Acknowledgement]], host: tuple[bytes, int]
) -> None:
    expected = batch_of(entries, host, compiled=False)
    found = batch_of(entries, host, compiled=True)
    if expected is None or found is None:
        assert found is expected
        return
    assert rows_of(found) == rows_of(expected)
    assert found.staging_len == expected.staging_len


@pytest.mark.parametrize("name", ["a\x01b", "a\x02b", "\ud800"])
def test_names_that_need_python_have_no_texts(name: str) -> None:
    assert texts_of("T", "g", "b") is not None
    for names in ((name, "g", "b"), ("T", name, "b"), ("T", "g", name)):
        assert texts_of(*names) is None


def test_long_names_are_encoded_in_python() -> None:
    long = "g" * (NAME_CHARS_MAX + 1)
    record = PopCheckpoint("T", long, 0, 0, 1, 1_000, (0,), "b")
    found = batch_of([(0, record)], HOSTS[0], compiled=True)
    assert found is not None
    assert found.body(1) == record.body()


def test_many_records_exceed_the_first_staging_buffer() -> None:
    record = Acknowledgement("T", "g", 2, 17, 1_000, tuple(range(10**17, 10**17 + 500)), "b", 61)
    entries = [(0, record)] * 40
    found = batch_of(entries, HOSTS[0], compiled=True)
    assert found is not None
    assert {found.body(row) for row in range(1, 41)} == {record.body()}
    assert np.unique(found.filled["body_len"][1:]).size == 1
