"""Workload on a store: writes, reads, searches, and a restart with only the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from duemq_common.clock import FakeClock
from message_store.config import StoreConfig
from message_store.index.key_search import frames, search_now
from message_store.kernels import encode
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from message_store.verify import verify_store

LOOPBACK = (b"\x7f\x00\x00\x01", 1)


def use_store(root: Path) -> None:
    """Use a store, reopen it with only its log, and verify it."""
    config, clock = _config(root), FakeClock()
    with MessageStore(config, clock) as store:
        _use(store)
    (root / "config" / "duemq.mark").unlink()
    with MessageStore(config, clock) as store:
        _use(store)
    verify_store(root)
    _copy(config, root / "replica")


def search_keys(root: Path) -> None:
    """Find a message by its key, as the history of a message does."""
    with MessageStore(_config(root), FakeClock()) as store:
        put_messages(store)
        frames(store, search_now(store, ["T"], ["a"]).offsets)


def _config(root: Path) -> StoreConfig:
    return StoreConfig(
        root_text=str(root),
        commitlog_file_bytes=4_096,
        queue_file_bytes=400,
        index_slots_max=16,
        index_entries_max=64,
    )


def _copy(config: StoreConfig, root: Path) -> None:
    """Append the log of a store to a replica."""
    clock = FakeClock()
    with (
        MessageStore(config, clock) as store,
        MessageStore(replace(config, root_text=str(root)), clock) as replica,
    ):
        for file in store.log.files:
            end = min(file.base + file.size, store.max_offset)
            replica.append_raw(file.base, file.data[: end - file.base].copy())


def _use(store: MessageStore) -> None:
    batch = put_messages(store)
    encode.revert_queue_offsets(batch.rows, 0, 0, store.topics.arrays)  # a refused write
    store.gather("T", 0, 0, store.units("T", 0, 0, 10))
    store.search_offset("T", 0, store.clock.now_ms())
    store.query_keys("T", "a", 10, 0, store.clock.now_ms())
    frames(store, search_now(store, ["T"], ["a"]).offsets)
    for rows in store.scan(store.min_offset):
        store.read_record(int(rows[0]["phys_offset"]))


def put_messages(store: MessageStore) -> PutBatch:
    """Append messages with keys; return their batch."""
    properties = encode_properties({"KEYS": "a b", "UNIQ_KEY": "U", "TAGS": "é", "DELAY": "1"})
    batch = PutBatch(4, 1)
    for queue_id in (0, 1):
        row_index = batch.add(
            topic_index=store.topics.add("T"),
            queue_id=queue_id,
            body=b"x" * 1_500,
            properties=properties,
            born_ms=1,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
        batch.rows[row_index]["real_topic_index"] = batch.rows[row_index]["topic_index"]
    store.put(batch)
    return batch
