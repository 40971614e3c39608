"""Naive key index, and an index service on the log of a closed store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from duemq_common.clock import FakeClock
from duemq_common.text import java_hash
from message_store import layout
from message_store.index.index_service import IndexService
from message_store.log.batch import PutBatch
from message_store.log.commit_log import CommitLog
from message_store.log.record import Record, decode_record
from message_store.recovery.checkpoint import Checkpoint
from tests.support.golden_stores import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    STORES,
    golden_config,
)
from tests.support.stores import add_message

T0 = 1_700_000_000_000
ALWAYS = (0, 1 << 62)
HEADER = layout.packer(layout.INDEX_HEADER)
INDEX_FILE_BYTES = 40 + INDEX_SLOTS * 4 + INDEX_ITEMS * 20
WHOLE = [golden.name for golden in STORES if golden.name != "apache-5.3.3-clean"]


def keys_of(record: Record) -> list[str]:
    names = [record.properties.get("UNIQ_KEY", ""), *record.properties.get("KEYS", "").split(" ")]
    return [f"{record.topic}#{name}" for name in names if name]


def index_hash(key: str) -> int:
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value)


class NaiveFile:
    """Index file that follows IndexFile.putKey."""

    def __init__(self, slots: int, items: int, before: NaiveFile | None = None) -> None:
        self.slots, self.items = [0] * slots, [(0, 0, 0, 0)] * items
        self.begin_ms = self.end_ms = before.end_ms if before else 0  # type: ignore[has-type]
        self.begin_phys = self.end_phys = before.end_phys if before else 0  # type: ignore[has-type]
        self.used, self.count = 0, 1

    @property
    def is_full(self) -> bool:
        return self.count >= len(self.items)

    def put(self, key_hash: int, phys: int, store_ms: int) -> None:
        slot = key_hash % len(self.slots)
        previous = self.slots[slot]
        diff = max((store_ms - self.begin_ms) // 1_000, 0) if self.begin_ms > 0 else 0
        self.items[self.count] = (key_hash, phys, min(diff, (1 << 31) - 1), previous)
        self.slots[slot] = self.count
        if self.count <= 1:
            self.begin_ms, self.begin_phys = store_ms, phys
        self.used += previous == 0
        self.count += 1
        self.end_ms, self.end_phys = store_ms, phys

    def data(self) -> bytes:
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_phys, self.end_phys, self.used, self.count
        )
        slots = np.array(self.slots, layout.INDEX_SLOT).tobytes()
        return header + slots + np.array(self.items, layout.INDEX_ITEM).tobytes()


def naive_files(
    keys: list[tuple[int, int, int]], slots: int = INDEX_SLOTS, items: int = INDEX_ITEMS
) -> list[bytes]:
    files: list[NaiveFile] = []
    for key in keys:
        if not files or files[-1].is_full:
            files.append(NaiveFile(slots, items, files[-1] if files else None))
        files[-1].put(*key)
    return [file.data() for file in files]


def records_of(root: Path, file_bytes: int = LOG_FILE_BYTES) -> list[Record]:
    with open_log(root, file_bytes) as log:
        records, position = list[Any](), log.min_offset
        while True:
            file = next((f for f in log.files if f.base <= position < f.base + f.size), None)
            if file is None:
                return records
            view = file.data[position - file.base :].data
            size = int.from_bytes(view[:4], "big")
            if view[4:8] == layout.MAGIC_BLANK.to_bytes(4, "big", signed=True):
                position = file.base + file.size
            elif not size:
                return records
            else:
                records.append(decode_record(view, position))
                position += size


@contextmanager
def open_log(root: Path, file_bytes: int = LOG_FILE_BYTES) -> Iterator[CommitLog]:
    log = CommitLog(root / "commitlog", file_bytes)
    log.load()
    try:
        yield log
    finally:
        log.close()


@contextmanager
def service(root: Path, end: int, clock: FakeClock | None = None, **kw: Any) -> Iterator[Any]:
    """Yield an index service over the log in `root` up to `end`, without a store."""
    with open_log(root) as log:
        log.end = end
        config = kw.pop("config", None) or golden_config(root)
        made = IndexService(root / "index", config, log, clock or FakeClock(T0))
        made.start(checkpoint=Checkpoint.load(root / "checkpoint"), trusted=kw.get("trusted", True))
        try:
            yield made
        finally:
            made.stop()


def contents(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def log_end(root: Path) -> int:
    last = records_of(root)[-1]
    return last.phys_offset + last.total_size


def header_of(words: Any) -> tuple[int, ...]:
    return HEADER.unpack_from(words.data.cast("B"))


def put_keys_of(store: Any, numbers: range) -> None:
    batch = PutBatch()
    for number in numbers:
        add_message(store, batch, "T", 0, properties={"KEYS": f"k{number} even", "UNIQ_KEY": "u"})
    store.put(batch)
