"""Reading for pops: filters, sizes, damaged records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duemq.pop.queue_reader import QueueReader
from duemq.pop.receipts import Receipt
from duemq.registry.subscriptions import Subscription, parse_expression
from duemq_common.clock import FakeClock
from duemq_common.errors import RecordUnreadable
from message_store.layout import CQ_UNIT
from message_store.log.record import decode_record, split_records
from message_store.store import MessageStore
from tests.support.fakes import FakeStore, put
from tests.support.stores import open_store, put_one

ALL = Subscription("T")


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeStore | MessageStore]:
    """Both stores: the fake must behave like the real one."""
    if request.param == "memory":
        yield FakeStore(FakeClock())
        return
    with open_store(tmp_path) as store:
        yield store


def bodies(data: bytes) -> list[bytes]:
    found, data = [], memoryview(data)  # type: ignore[assignment]
    while data:
        record = decode_record(data, 0)
        found.append(record.body)
        data = data[record.total_size :]
    return found


def test_messages_are_read_in_order_up_to_the_count(store: FakeStore | MessageStore) -> None:
    put(store, "T", b"a", b"b", b"c")
    reader = QueueReader(store)
    found = reader.read("T", 0, 1, 1, ALL)
    assert (found.start, found.end, found.offsets, bodies(found.data)) == (1, 2, (1,), [b"b"])
    assert reader.read("T", 0, 3, 1, ALL) is None
    assert reader.read("U", 0, 0, 1, ALL) is None


def test_a_full_read_ends_after_its_last_message_and_others_after_all_rejected_messages(
    store: FakeStore | MessageStore,
) -> None:
    for number in range(6):
        put(store, "T", b"%d" % number, properties=b"TAGS\x01%s\x02" % (b"ab"[number % 2 :][:1]))
    reader, only_b = QueueReader(store), parse_expression("T", "b")
    found = reader.read("T", 0, 0, 2, only_b)
    assert (found.end, found.offsets, bodies(found.data)) == (4, (1, 3), [b"1", b"3"])
    found = reader.read("T", 0, 0, 3, only_b)
    assert (found.end, found.offsets) == (6, (1, 3, 5))
    found = reader.read("T", 0, 0, 9, only_b)
    assert (found.end, found.offsets) == (6, (1, 3, 5))
    found = reader.read("T", 0, 0, 9, parse_expression("T", "c"))
    assert (found.end, found.offsets, found.data) == (6, (), b"")


def test_messages_for_another_filter_after_a_full_read_are_left(
    store: FakeStore | MessageStore,
) -> None:
    for number in range(6):
        put(store, "T", b"%d" % number, properties=b"TAGS\x01%s\x02" % (b"ab"[number % 2 :][:1]))
    reader, only_a = QueueReader(store), parse_expression("T", "a")
    for count_max, end in [(1, 1), (2, 3), (3, 5), (4, 6)]:  # as Apache's broker 5.3.3
        assert reader.read("T", 0, 0, count_max, only_a).end == end


def test_damaged_messages_are_skipped() -> None:
    store = FakeStore(FakeClock())
    batch = put(store, "T", b"a", b"b", b"c")
    store.damaged.add(int(batch.rows[1]["phys_offset"]))
    reader = QueueReader(store)
    found = reader.read("T", 0, 0, 9, ALL)
    assert (found.end, found.offsets, bodies(found.data)) == (3, (0, 2), [b"a", b"c"])
    with pytest.raises(RecordUnreadable):
        reader.message("T", 0, 1)


def test_a_message_is_read_by_offset_before_it_is_readable_for_consumers(tmp_path: Path) -> None:
    with open_store(
        tmp_path, flush_disk_type="SYNC_FLUSH", flush_commitlog_interval_ms=100_000
    ) as store:
        put_one(store, "T", body=b"a")
        put_one(store, "T", body=b"b")
        assert QueueReader(store).read("T", 0, 0, 9, ALL) is None
        assert QueueReader(store).message("T", 0, 1).body == b"b"
        with pytest.raises(RecordUnreadable, match="message 2 of T/0 does not exist"):
            QueueReader(store).message("T", 0, 2)


def test_handles_of_producers_are_removed_and_those_of_retries_added(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T", body=b"a", properties={"POP_CK": "forged", "KEYS": "k"})
        reader = QueueReader(store)
        found = reader.read("T", 0, 0, 9, ALL)
        plain = decode_record(memoryview(reader.records(found)), 0)
        assert (plain.body, plain.properties) == (b"a", {"KEYS": "k"})
        receipt = Receipt(0, 1, 2, 3, "1", "b", 0)
        again = decode_record(memoryview(reader.retry_records(found, "U", receipt)), 0)
        assert again.topic == "U"
        assert again.properties == {"KEYS": "k", "POP_CK": "0 1 2 3 1 b 0 0"}


def test_raw_records_are_read_with_one_call(store: FakeStore | MessageStore) -> None:
    for body in (b"a", b"b", b"c", b"d"):
        put(store, "T", body)
    reader = QueueReader(store)
    raw = reader.raw_records("T", 0, [1, 3])
    found = raw.records()
    assert [(record.body, record.queue_offset) for record in found] == [(b"b", 1), (b"d", 3)]
    assert found == [reader.message("T", 0, offset) for offset in (1, 3)]
    assert raw.log_offsets.tolist() == [record.phys_offset for record in found]
    assert reader.raw_records("T", 0, [2, 4]) is None, "there is no offset 4"


def test_raw_records_are_none_with_a_damaged_message() -> None:
    store = FakeStore(FakeClock())
    batch = put(store, "T", b"a", b"b", b"c")
    store.damaged.add(int(batch.rows[1]["phys_offset"]))
    reader = QueueReader(store)
    assert reader.raw_records("T", 0, [0, 1, 2]) is None
    assert [record.body for record in reader.raw_records("T", 0, [0, 2]).records()] == [b"a", b"c"]


def test_all_retries_of_a_read_get_their_own_handle(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for body in (b"a", b"bb", b"ccc"):
            put_one(store, "T", body=body)
        reader = QueueReader(store)
        data = reader.retry_records(
            reader.read("T", 0, 0, 9, ALL), "U", Receipt(0, 1, 2, 3, "1", "b", 0)
        )
        found = [(r.body, r.topic, r.properties["POP_CK"]) for r in split_records(data)]
        assert found == [
            (body, "U", f"0 1 2 3 1 b 0 {offset}")
            for offset, body in enumerate((b"a", b"bb", b"ccc"))
        ]


def test_each_of_the_following_messages_is_read_or_has_its_error(
    store: FakeStore | MessageStore,
) -> None:
    for body in (b"a", b"b", b"c", b"d"):
        put(store, "T", body)
    reader = QueueReader(store)
    assert [record.body for record in reader.following("T", 0, 1, 2)] == [b"b", b"c"]
    assert [record.body for record in reader.following("T", 0, 2, 9)] == [b"c", b"d"]
    assert reader.following("T", 0, 4, 9) == []
    assert reader.following("U", 0, 0, 9) == []


def test_a_damaged_message_among_the_following_has_an_error_in_its_place() -> None:
    store = FakeStore(FakeClock())
    batch = put(store, "T", b"a", b"b", b"c")
    store.damaged.add(int(batch.rows[1]["phys_offset"]))
    first, second, third = QueueReader(store).following("T", 0, 0, 9)
    assert (first.body, third.body) == (b"a", b"c")
    assert isinstance(second, RecordUnreadable)


def test_the_following_messages_are_read_again_after_a_repair_of_their_units(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path) as store:
        for body in (b"a", b"b", b"c"):
            put_one(store, "T", body=body)
        queue, unit = store.queues.find("T", 0), np.zeros(1, CQ_UNIT)
        for name in CQ_UNIT.names:
            unit[name] = queue.read(0, 1)[name]
        queue.write(1, memoryview(unit.tobytes()))
        found = QueueReader(store).following("T", 0, 0, 9)
        assert [record.body for record in found] == [b"a", b"b", b"c"]
