"""Delivery steps shared by levels and timers."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.deliverer import SingleDeliverer
from delayed_delivery.outcome import NO_TOPIC, NOT_PUT, Outcome
from delayed_delivery.quarantine import Reason, Undeliverable
from delayed_delivery.records import add_message, read_record
from delayed_delivery.redirected import NoTarget
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.commit_log import LogFile
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable
from message_store.store import MessageStore
from tests.support import stores
from tests.support.stores import open_store, put_one

NOW_MS = 5_000


class Reader:
    """A reader whose units are rows of `put_one`."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    def is_lost(self, unit: np.void) -> bool:
        return bool(unit["phys_offset"] < self.store.log.min_offset)

    def read(self, unit: np.void) -> Record:
        return read_record(self.store, int(unit["phys_offset"]), int(unit["record_size"]))

    def undeliverable(self, reason: Reason, detail: str, unit: np.void) -> Undeliverable:
        return Undeliverable(reason, detail, int(unit["phys_offset"]), 0, -1, data=b"x" * 70_000)

    def topic_of(self, unit: np.void, item: Undeliverable | None = None) -> int:
        return NO_TOPIC if item is None else 7

    def convert(self, batch: PutBatch, record: Record, unit: np.void) -> NoTarget | None:
        if record.body == b"bad":
            return NoTarget(Reason.NO_TARGET, "no target")
        row = batch.rows[add_message(batch, record, self.store.topics.add("T"), 0, b"")]
        row["body_len"] = int(record.body) if record.body.isdigit() else row["body_len"]
        return None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


def deliver(
    store: MessageStore, *bodies: bytes, damaged: tuple[Any, ...] | list[int] = ()
) -> Outcome:
    units = [put_one(store, "HELD", body=body) for body in bodies]
    for at in damaged:
        units[at]["phys_offset"] += 1
    reader, outcome = Reader(store), Outcome(len(units))
    single = SingleDeliverer(store, reader)
    for unit in units:
        if not outcome.refusal:
            single.deliver(unit, reader.convert, outcome, NOW_MS)
    return outcome


def test_each_unit_is_delivered_or_quarantined_with_its_reason(store: MessageStore) -> None:
    outcome = deliver(store, b"a", b"bad", b"b", b"c", damaged=[2])
    assert (outcome.done, outcome.delivered, outcome.lost, outcome.refusal) == (4, 2, 0, "")
    assert (outcome.store_ms != NOT_PUT).tolist() == [True, False, False, True]
    assert outcome.topic_index.tolist() == [store.topics.find("T"), 7, 7, store.topics.find("T")]
    assert [item.reason for item in outcome.quarantined] == ["no_target", "unreadable"]
    assert store.queue_bounds("T", 0)[1] == 2
    assert store.queue_bounds(QUARANTINE_TOPIC, 0)[1] == 2


def test_messages_that_the_store_never_takes_are_quarantined_without_bytes(
    store: MessageStore,
) -> None:
    outcome = deliver(store, b"70000")
    assert [item.reason for item in outcome.quarantined] == ["illegal"]
    unit = store.units(QUARANTINE_TOPIC, 0, 0, 1)[0]
    assert store.read_record(int(unit["phys_offset"])).body == b""


@pytest.mark.parametrize(("body", "illegal"), [(b"a", False), (b"bad", True)])
def test_a_full_disk_settles_nothing(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, body: bytes, illegal: bool
) -> None:
    unit = put_one(store, "HELD", body=body)

    def fail(self: LogFile, pos: int, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(type(store.log.files[0]), "write", fail)
    reader, outcome = Reader(store), Outcome(1)
    SingleDeliverer(store, reader).deliver(unit, reader.convert, outcome, NOW_MS)
    assert (outcome.done, outcome.quarantined, outcome.illegal) == (0, [], illegal)
    assert "disk is full" in outcome.refusal


def test_a_record_that_retention_removed_is_lost(store: MessageStore) -> None:
    unit = put_one(store, "HELD")
    while len(store.log.files) < 2:
        put_one(store, "HELD", body=bytes(15_000))
    store.log.detach_first().erase()
    reader, outcome = Reader(store), Outcome(1)
    SingleDeliverer(store, reader).deliver(unit, reader.convert, outcome, NOW_MS)
    assert (outcome.done, outcome.lost, outcome.store_ms.tolist()) == (1, 1, [NOT_PUT])


def test_columns_of_delivered_units() -> None:
    outcome, due_ms = Outcome(5), np.arange(5)
    for store_ms, topic_index in ((10, 1), (11, 2)):
        outcome.record(store_ms, topic_index)
    assert [column.tolist() for column in outcome.delivered_columns(due_ms)] == [
        [0, 1],
        [10, 11],
        [1, 2],
    ]
    outcome.record(NOT_PUT, NO_TOPIC)
    outcome.record(12, 1)
    assert (outcome.done, outcome.delivered) == (4, 3)
    assert [column.tolist() for column in outcome.delivered_columns(due_ms)] == [
        [0, 1, 3],
        [10, 11, 12],
        [1, 2, 1],
    ]


def test_a_batch_is_settled_up_to_the_first_refused_row(store: MessageStore) -> None:
    batch, outcome = PutBatch(4, 1), Outcome(5)
    for _ in range(4):
        stores.add_message(store, batch, "T")
    store.put(batch)
    batch.rows["status"][2] = 14
    outcome.record(NOT_PUT, NO_TOPIC)
    assert outcome.record_batch(batch, {1: 7, 3: 8}) == 2
    assert (outcome.done, outcome.delivered, outcome.refusal) == (
        3,
        1,
        "the store is not writable",
    )
    assert outcome.store_ms.tolist() == [NOT_PUT, int(batch.rows[0]["store_ms"]), NOT_PUT]
    assert outcome.topic_index.tolist() == [NO_TOPIC, store.topics.find("T"), 7]


def test_a_table_has_routes_once_a_topic_has_queues() -> None:
    topics = TopicTable()
    topics.add("T")
    assert not topics.has_routes
    topics.set_routing("T", write_queues=4, read_queues=4, perm=6)
    assert topics.has_routes
