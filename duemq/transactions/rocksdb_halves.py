"""Half messages of Apache 5.4 and later that RocksDB kept (`transRocksDBEnable`).

    RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC     q0   half messages, named by their log offset
    RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC  q0   TRANS_OFFSET: log offset of a finished half message

A start takes the unfinished ones over: each gets a copy in RMQ_SYS_TRANS_HALF_TOPIC and an op
record in the second topic, in one batch. The copy is that of a check-back, so the end of the
transaction finds it by its identity. RocksDB also counted the check-backs; they start again.

Source: TransMessageRocksDBStore, TransactionalMessageRocksDBService
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from duemq.transactions.half_messages import (
    CHECK_TIMES,
    CLIENT_ID_KEY,
    OP_TAG,
    TRANSACTION_ID,
    check_count,
    half_identity,
    to_half,
)
from duemq.transactions.torn_commits import torn_commits
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import HALF_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_HALF_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.copies import add_copy, batch_for, refusal
from message_store.log.properties import encode_properties
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
UNITS_MAX: Final = 1_024
OP_BODY: Final = b"\0"
OFFSET_NAME: Final = "TRANS_OFFSET"


def take_over(store: MessageStore, host: tuple[bytes, int], now_ms: int) -> None:
    """Copy the unfinished half messages to the half topic; finish those that are already there.

    Call it before other components append to the log. A replica copies none.
    """
    halves = [] if store.read_only else _unfinished(store)
    if not halves:
        return
    offsets = {half.phys_offset: half.queue_offset for half in halves}
    committed = {half.phys_offset for half in torn_commits(store, offsets)}
    copied = {half_identity(record) for record in _records(store, HALF_TOPIC)} - {None}
    for half in halves:
        batch = batch_for(half)
        if half.phys_offset not in committed and half_identity(half) not in copied:
            _add_half(batch, half, store, host)
        _add_op(batch, half, store, host, now_ms)
        batch.trusted = True  # it was accepted before
        store.put(batch)
        for fault in filter(None, (refusal(batch, row) for row in range(batch.count))):
            log.warning("half message at %d was not taken over: %s", half.phys_offset, fault)
    log.info("%d half messages of %s taken over", len(halves), ROCKSDB_HALF_TOPIC)


def _unfinished(store: MessageStore) -> list[Record]:
    ended = {
        record.properties.get(OFFSET_NAME) for record in _records(store, ROCKSDB_OP_HALF_TOPIC)
    }
    halves = _records(store, ROCKSDB_HALF_TOPIC)
    return [half for half in halves if str(half.phys_offset) not in ended]


def _records(store: MessageStore, topic: str) -> Iterator[Record]:
    """Yield the readable records of queue 0 of a topic."""
    offset, end = store.queue_bounds(topic, 0)
    while offset < end:
        units = store.units(topic, 0, offset, UNITS_MAX)
        for phys_offset in units["phys_offset"].tolist():
            try:
                yield store.read_record(phys_offset)
            except RecordUnreadable as fault:
                log.warning("a record of %s cannot be read: %s", topic, fault)
        offset += max(int(units.size), 1)


def _add_half(batch: PutBatch, half: Record, store: MessageStore, host: tuple[bytes, int]) -> None:
    row = add_copy(
        batch,
        half,
        topic_index=store.topics.add(HALF_TOPIC),
        queue_id=0,
        properties=half.properties | {CHECK_TIMES: str(check_count(half) + 1)},
        store_host=host,
    )
    to_half(batch, row, store.topics)


def _add_op(
    batch: PutBatch, half: Record, store: MessageStore, host: tuple[bytes, int], now_ms: int
) -> None:
    properties = {
        "TAGS": OP_TAG,
        TRANSACTION_ID: half.properties.get(CLIENT_ID_KEY, ""),
        OFFSET_NAME: str(half.phys_offset),
        "REAL_TOPIC": half.properties.get("REAL_TOPIC", ""),
    }
    batch.add(
        topic_index=store.topics.add(ROCKSDB_OP_HALF_TOPIC),
        queue_id=0,
        body=OP_BODY,
        properties=encode_properties({name: text for name, text in properties.items() if text}),
        born_ms=now_ms,
        born_host=host,
        store_host=host,
    )
