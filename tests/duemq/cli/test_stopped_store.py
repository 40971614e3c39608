"""Pending messages of stopped stores of Apache's brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.cli.decoded_page import DecodedPage, decode_page
from duemq.cli.message_file import PendingLine
from duemq.cli.stopped_store import stopped_pages
from duemq.messages.pending_pages import PendingPages
from duemq_common.errors import StoreError, StoreLocked, UsageError
from tests.support.golden_stores import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    golden_store,
    manifest_lines,
)

PROPERTIES = {
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ITEMS),
}
RECALLED = "timer-far0-1"


def pages_of(root: Path, work: Path) -> list[DecodedPage]:
    async def collect() -> list[DecodedPage]:
        decoded: list[DecodedPage] = []
        with stopped_pages(root, PROPERTIES, work=work) as pages:
            cursor = ""
            while True:
                page = await pages.page(cursor)
                decoded.append(decode_page(page))
                assert not decoded[-1].damaged
                cursor = page.cursor
                if not cursor:
                    return decoded

    return asyncio.run(collect())


def pending_of(root: Path, work: Path) -> list[PendingLine]:
    return [line for page in pages_of(root, work) for line in page.lines]


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "timerwheel"]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_pending_messages_of_a_manifest_are_found(
    version: str, state: str, tmp_path: Path
) -> None:
    name = f"apache-{version}-{'running' if (version, state) == ('4.9.7', 'killed') else state}"
    root = golden_store(name)
    before = content(root)
    records = pending_of(root, tmp_path)
    received = {line["msgId"] for line in manifest_lines(version, "received")}
    sent = manifest_lines(version, "sent")
    levels = {line["msgId"] for line in sent if line["level"] > 0} - received
    timers = {
        line["msgId"]: int(line["timer_deliver_ms"])
        for line in sent
        if line.get("what") == "timer_deliver_ms" and line["keys"] != RECALLED
    }
    found = {each.unique_id: each for each in records}
    assert len(found) == len(records)
    assert set(found) == levels | set(timers)
    assert {key: found[key].due_ms for key in timers} == timers
    assert content(root) == before
    assert not list(tmp_path.iterdir())  # the copy is gone


COUNTS = {
    "apache-5.5.0-clean": 20,
    "apache-5.5.0-killed": 40,
    "apache-5.5.1-wheel": 20,
    "apache-5.5.1-timeline": 20,
    "apache-5.5.1-rolled": 10,
    "apache-5.5.1-rocksdb": 10,
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", COUNTS)
def test_stores_of_newer_versions_are_read(name: str, tmp_path: Path) -> None:
    records = pending_of(golden_store(name), tmp_path)
    assert len({(each.topic, each.unique_id) for each in records}) == len(records) == COUNTS[name]


def test_checkpoints_of_pops_are_not_of_an_application(tmp_path: Path) -> None:
    pages = pages_of(golden_store("apache-5.5.1-pop"), tmp_path)
    assert sum(page.left_out for page in pages)
    assert not any(page.lines for page in pages)


def test_the_store_of_a_running_broker_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.cli.stopped_store.is_locked", lambda root: True)
    with pytest.raises(StoreLocked, match="stop it, or export from the broker"):
        pending_of(golden_store("apache-5.3.3-clean"), tmp_path)


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a store"):
        pending_of(tmp_path, tmp_path)


def test_a_broker_that_delivers_nothing_refuses_an_export(tmp_path: Path) -> None:
    with stopped_pages(golden_store("apache-4.9.7-clean"), PROPERTIES, work=tmp_path) as pages:
        replica = PendingPages(pages.store, tuple)
        with pytest.raises(StoreError, match="export from its master"):
            asyncio.run(replica.page(""))


@pytest.mark.parametrize("cursor", ["x", "0_0_0", "9_0_0_0", "0_0_0_-1", "0_0_0_" + "9" * 30])
def test_an_invalid_cursor_is_refused(cursor: str, tmp_path: Path) -> None:
    with (
        stopped_pages(golden_store("apache-4.9.7-clean"), PROPERTIES, work=tmp_path) as pages,
        pytest.raises(ValueError, match="is not a cursor of"),
    ):
        asyncio.run(pages.page(cursor))
