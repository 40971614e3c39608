"""Copies of the directory of a running store: its files are of different times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from message_store.layout import INDEX_HEADER_BYTES
from message_store.store import MessageStore
from message_store.verify import verify_store
from tests.support.stores import open_store, put_one

KEYS, CHAINS = 40, 5


def put_keys(store: MessageStore, first: int, end: int) -> None:
    for number in range(first, end):
        store.clock.advance(1_000)  # type: ignore[attr-defined]
        put_one(store, "T", properties={"KEYS": f"k{number % CHAINS}"})
    store.index.catch_up()


def headers(root: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()[:INDEX_HEADER_BYTES] for path in (root / "index").iterdir()
    }


@pytest.mark.finding("3D12")
@pytest.mark.parametrize("stops_before", [False, True])
def test_the_index_of_a_live_copy_is_rebuilt(tmp_path: Path, stops_before: bool) -> None:
    """The header of an index file was copied before its items."""
    root, copy = tmp_path / "store", tmp_path / "copy"
    with open_store(root) as store:
        clock = store.clock
        put_keys(store, 0, KEYS // 2)
        if not stops_before:
            store.flush()
            before = headers(root)
            put_keys(store, KEYS // 2, KEYS)
            store.flush()
            shutil.copytree(root, copy)
    if stops_before:
        with open_store(root, clock) as store:
            before = headers(root)
            put_keys(store, KEYS // 2, KEYS)
            shutil.copytree(root, copy)
    for name, header in before.items():
        with (copy / "index" / name).open("r+b") as file:
            file.write(header)
    with open_store(copy, clock) as store:
        put_keys(store, KEYS, KEYS + 5)
        for number in range(CHAINS):
            found = store.query_keys("T", f"k{number}", KEYS, 0, 1 << 62)
            assert len(found) == KEYS // CHAINS + 1
    report = verify_store(copy)
    assert report.ok, [str(finding) for finding in report.findings]
