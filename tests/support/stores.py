"""Small stores and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duemq_common.clock import FakeClock
from message_store.config import StoreConfig
from message_store.hooks import TagsCodeRule
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record
from message_store.store import MessageStore

LOOPBACK = (b"\x7f\x00\x00\x01", 10911)


def small_config(root: Path, **changes: Any) -> StoreConfig:
    """Return a configuration with small files."""
    settings: dict[str, Any] = {
        "root_text": str(root),
        "commitlog_file_bytes": 65_536,
        "queue_file_bytes": 1_000,
        "index_slots_max": 50,
        "index_entries_max": 200,
        "message_bytes_max": 20_000,
    }
    return StoreConfig(**(settings | changes))


def open_store(
    root: Path, clock: FakeClock | None = None, rules: tuple[TagsCodeRule, ...] = (), **changes: Any
) -> MessageStore:
    """Return a small store on a fake clock; the caller enters it as a context manager."""
    return MessageStore(small_config(root, **changes), clock or FakeClock(), tags_code_rules=rules)


def add_message(
    store: MessageStore,
    batch: PutBatch,
    topic: str,
    queue_id: int = 0,
    body: bytes = b"body",
    *,
    properties: dict[str, str] | None = None,
    **fields: Any,
) -> int:
    """Add one message to `batch`; return its row."""
    return batch.add(
        topic_index=store.topics.add(topic),
        queue_id=queue_id,
        body=body,
        properties=encode_properties(properties or {}),
        born_ms=store.clock.now_ms(),
        born_host=LOOPBACK,
        store_host=LOOPBACK,
        **fields,
    )


def put_one(
    store: MessageStore, topic: str, queue_id: int = 0, body: bytes = b"body", **k: Any
) -> Any:
    """Append one message; return a copy of its row."""
    batch = PutBatch(8, 1)
    add_message(store, batch, topic, queue_id, body, **k)
    store.put(batch)
    return batch.rows[0].copy()


def records_of(store: MessageStore, topic: str, queue_id: int = 0) -> list[Record]:
    """Return the records of a queue."""
    first, end = store.queue_bounds(topic, queue_id)
    records: list[Record] = []
    while first < end:
        units = store.units(topic, queue_id, first, 1_000)
        records += [store.read_record(int(unit["phys_offset"])) for unit in units]
        first += int(units.size)
    return records


def crash(store: MessageStore) -> None:
    """End a store without syncing, like a killed process; the file `abort` remains."""
    store.index.stop()
    store.flusher._after_flush = lambda end: None
    store.read_ahead.stop()
    store.flusher.stop()
    store.mark.close()
    store.queues.close()
    store.log.close()
    store._lock.release()
