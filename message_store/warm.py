"""Compilation of all kernels of the store, by one use of each.

Numba keeps one machine code per combination of argument types. Using the store itself gives the
very types that a broker will use, so that no later start compiles anything.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from message_store.clock import FakeClock
from message_store.config import StoreConfig
from message_store.index.key_search import frames, search_now
from message_store.kernels import CACHE_DIRECTORY, PACKAGES, digest_of_all
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from message_store.verify import verify_store

LOOPBACK = (b"\x7f\x00\x00\x01", 1)


def warm_store() -> None:
    """Run every kernel of `message_store` once on a small store in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="duemq-warm-") as directory:
        config = StoreConfig(
            root_text=directory,
            commitlog_file_bytes=4_096,
            queue_file_bytes=400,
            index_slots_max=16,
            index_entries_max=64,
        )
        clock = FakeClock()
        with MessageStore(config, clock) as store:
            _use(store)
        (Path(directory) / "config" / "duemq.mark").unlink()
        with MessageStore(config, clock) as store:
            _use(store)
        verify_store(Path(directory))


def _use(store: MessageStore) -> None:
    properties = encode_properties({"KEYS": "a b", "UNIQ_KEY": "U", "TAGS": "é", "DELAY": "1"})
    batch = PutBatch(4, 1)
    for queue_id in (0, 1):
        at = batch.add(
            topic_index=store.topics.add("T"),
            queue_id=queue_id,
            body=b"x" * 1_500,
            properties=properties,
            born_ms=1,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
        batch.rows[at]["real_topic_index"] = batch.rows[at]["topic_index"]
    store.put(batch)
    store.gather(store.units("T", 0, 0, 10))
    store.search_offset("T", 0, store.clock.now_ms())
    store.query_keys("T", "a", 10, 0, store.clock.now_ms())
    frames(store, search_now(store, ["T"], ["a"]).offsets)
    for rows in store.scan(store.min_offset):
        store.read_record(int(rows[0]["phys_offset"]))


def kernels_compiled_here() -> list[str]:
    """Return the kernels that this process compiled instead of loading them from the cache."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            found += [
                f"{name}.{attribute}"
                for attribute, value in vars(module).items()
                if _misses(value) and value.py_func.__module__ == name
            ]
    return sorted(found)


def _misses(value: Any) -> bool:
    stats = getattr(value, "stats", None)
    return bool(getattr(stats, "cache_misses", None)) if hasattr(value, "py_func") else False


def is_complete() -> bool:
    """Return whether everything was compiled into this cache before."""
    return _complete().exists()


def set_complete() -> None:
    """Note that everything is compiled."""
    _complete().touch()


def _complete() -> Path:
    return CACHE_DIRECTORY / f"complete-{digest_of_all()}"
