"""Golden stores, manifests and frames for tests; see `tests/golden/README.md`.

`golden_store` unpacks a store once per run, for reading only. `copy_golden_store` copies a store
for one test, which can open and change it.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from message_store.config import StoreConfig
from schedule_service.levels import LevelTable
from schedule_service.tags_code_rule import LevelRule
from tests.support.sparse_files import unpack

GOLDEN = Path(__file__).parent.parent / "golden"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LOG_FILE_BYTES = 65_536
QUEUE_FILE_BYTES = 1_000
INDEX_SLOTS = 50
INDEX_ITEMS = 200


@dataclass(frozen=True, slots=True)
class GoldenStore:
    """Archive of a store: its name, the release that wrote it, and how its broker ended."""

    name: str
    version: str
    clean: bool

    def __str__(self) -> str:
        return self.name


STORES = (
    GoldenStore("apache-4.9.7-clean", "4.9.7", clean=True),
    GoldenStore("apache-4.9.7-running", "4.9.7", clean=False),
    GoldenStore("apache-5.3.3-clean", "5.3.3", clean=True),
    GoldenStore("apache-5.3.3-killed", "5.3.3", clean=False),
)
VERSIONS = ("4.9.7", "5.3.3")
NEWEST = "5.5.0"
NEWEST_STORES = (
    GoldenStore("apache-5.5.0-clean", NEWEST, clean=True),
    GoldenStore("apache-5.5.0-killed", NEWEST, clean=False),
)
"""Stores recorded by `tests/interop/record_stores.py`; manifests have no Java client lines."""
ROCKSDB_VERSION = "5.5.1"  # stores recorded by `tests/interop/record_rocksdb_stores.py`
ALL_STORES = (*STORES, *NEWEST_STORES)


@functools.cache
def _unpacked() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="duemq-golden-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@functools.cache
def golden_store(name: str) -> Path:
    """Return an unpacked golden store; all tests share it and must not change it."""
    unpack(GOLDEN / "stores" / f"{name}.tar.gz", _unpacked())
    return _unpacked() / name


def copy_golden_store(name: str, target: Path) -> Path:
    """Copy a golden store without its timer wheel below `target`; return the root."""
    root = target / name
    shutil.copytree(golden_store(name), root, ignore=shutil.ignore_patterns("timerwheel"))
    return root


def golden_config(root: Path, **changes: Any) -> StoreConfig:
    """Return the configuration that the golden stores were written with."""
    settings: dict[str, Any] = {
        "root_text": str(root),
        "commitlog_file_bytes": LOG_FILE_BYTES,
        "queue_file_bytes": QUEUE_FILE_BYTES,
        "index_slots_max": INDEX_SLOTS,
        "index_entries_max": INDEX_ITEMS,
        "message_bytes_max": 20_000,
    }
    return StoreConfig(**(settings | changes))


def level_rules(levels: str = DEFAULT_LEVELS) -> tuple[LevelRule, ...]:
    """Return the rules of the schedule topic's tags codes, with one level table from offset 0."""
    return (LevelRule(SCHEDULE_TOPIC, (LevelTable(0, parse_levels(levels)),)),)


@functools.cache
def manifest(version: str) -> tuple[dict[str, Any], ...]:
    """Return the lines of a manifest, in order."""
    text = (GOLDEN / "manifests" / f"apache-{version}.jsonl").read_text()
    return tuple(json.loads(line) for line in text.splitlines())


def manifest_lines(version: str, kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind."""
    return [line for line in manifest(version) if line["kind"] == kind]


def end_ms(version: str) -> int:
    """Return the end time of the recording, at which fake clocks start."""
    return max(int(end["at"]) for end in manifest_lines(version, "end"))


def frame_files() -> list[Path]:
    """Return every recorded stream."""
    return sorted((GOLDEN / "frames").glob("*.jsonl.gz"))


def frames(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the frames of a stream in time order."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
