"""A store with messages in several files of each kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from message_store.log.batch import PutBatch
from tests.support.stores import add_message, open_store

RECORDS = 1_200


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with 1,200 messages in three queues and several files of each kind."""
    root = tmp_path_factory.mktemp("verify") / "store"
    with open_store(root) as store:
        for start in range(0, RECORDS, 100):
            batch = PutBatch()
            for number in range(start, start + 100):
                add_message(
                    store,
                    batch,
                    "T",
                    number % 3,
                    f"{number:06d}".encode() * 10,
                    properties={"KEYS": f"k{number}", "UNIQ_KEY": f"U{number}", "TAGS": "a"},
                )
            store.put(batch)
            store.clock.advance(10)  # type: ignore[attr-defined]
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{}}}')
    return root


@pytest.fixture
def root(whole_store: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole_store, tmp_path / "store")
    return tmp_path / "store"
