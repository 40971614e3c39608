"""Removal of a topic's queues: outside of the event loop and atomic in kills."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from message_store.queues.deleted_topics import Deletions
from message_store.store import MessageStore
from message_store.topic_removal import remove_topic_in_thread
from tests.support.stores import crash, open_store, put_one
from tests.support.topic_removal import remove_topic


def remove(store: MessageStore, name: str) -> None:
    asyncio.run(remove_topic_in_thread(store, name))


def note_syncs(monkeypatch: pytest.MonkeyPatch, store: MessageStore) -> list[str]:
    """Record the syncs and unlinks of the calling thread from now on."""
    seen: list[str] = []

    def noted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*values: Any, **more: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                seen.append(name)
            return real(*values, **more)

        monkeypatch.setattr(owner, name, call)

    for name in ("fsync", "fdatasync", "unlink", "rmdir"):
        noted(os, name)
    return seen


@pytest.mark.finding("A17")
def test_a_removal_syncs_and_unlinks_in_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path) as store:
        for number in range(120):  # three queue files
            put_one(store, "T", 0, b"%d" % number)
        store.flush()
        sums = tmp_path / "sums" / "consumequeue" / "T"
        assert sums.exists()
        seen = note_syncs(monkeypatch, store)
        remove(store, "T")
        assert seen == []
        monkeypatch.undo()
        assert not sums.exists()
        assert store.queue_bounds("T", 0) == (0, 0)
        assert not (tmp_path / "consumequeue" / "T").exists()
        assert not any((tmp_path / "removed").iterdir())
        assert '"T"' in (tmp_path / "config" / "deletedTopics.json").read_text()
        assert put_one(store, "T", 0, b"again")["queue_offset"] == 0


@pytest.mark.finding("A17")
@pytest.mark.parametrize("name", ["Unknown", "Empty", "", ".", "..", "../config", "a/b", "\udcff"])
def test_removing_a_topic_without_messages_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T")
        store.topics.set_routing("Empty", write_queues=4, read_queues=4, perm=6)
        before = sorted(path for path in tmp_path.rglob("*"))
        seen = note_syncs(monkeypatch, store)
        remove(store, name)
        remove_topic(store, name)
        assert seen == []
        assert sorted(path for path in tmp_path.rglob("*")) == before
        assert store.queue_bounds("T", 0) == (0, 1)


@pytest.mark.finding("A17")
@pytest.mark.parametrize("step", ["detached", "noted"])
def test_a_removal_is_complete_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    put_one(store, "T", 0, b"old")
    put_one(store, "U", 0, b"kept")
    store.flush()
    detached = store.detach_topic("T")
    assert detached is not None
    if step == "noted":
        store.queues.deletions.write()
    crash(store)
    with open_store(tmp_path) as again:
        assert not (tmp_path / "removed").exists()
        assert again.queue_bounds("T", 0) == (0, 0)
        assert again.queue_bounds("U", 0) == (0, 1)
        assert put_one(again, "T", 0, b"new")["queue_offset"] == 0


@pytest.mark.finding("A17")
def test_a_refused_list_of_removals_is_written_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_store(tmp_path) as store:
        put_one(store, "T")
        with monkeypatch.context() as patch:
            patch.setattr("message_store.queues.deleted_topics.write_config", full)
            with pytest.raises(OSError, match="No space"):
                remove(store, "T")
        assert store.queues.deletions.unwritten
        assert store.queue_bounds("T", 0) == (0, 0)
        remove(store, "T")
        assert not store.queues.deletions.unwritten
    assert '"T"' in (tmp_path / "config" / "deletedTopics.json").read_text()


def test_deleted_files_make_room_for_the_second_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bool] = []

    def write(path: Path, text: str) -> None:
        written.append(any((tmp_path / "removed").iterdir()))
        if written[-1]:
            raise OSError(errno.ENOSPC, "No space left on device")

    with open_store(tmp_path) as store:
        put_one(store, "T")
        monkeypatch.setattr("message_store.queues.deleted_topics.write_config", write)
        remove(store, "T")
        assert written == [True, False]


def test_queues_on_another_file_system_are_removed_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with open_store(tmp_path) as store:
        put_one(store, "T")
        monkeypatch.setattr(Path, "rename", apart)
        remove(store, "T")
        assert not (tmp_path / "consumequeue" / "T").exists()
        assert store.queue_bounds("T", 0) == (0, 0)


@pytest.mark.finding("A17")
def test_removals_are_forgotten_with_their_records(tmp_path: Path) -> None:
    deletions = Deletions(tmp_path / "deletedTopics.json")
    for number in range(10):
        deletions.add(f"T{number}", number * 100)
    deletions.fit(450, 700)
    deletions.write()
    again = Deletions(tmp_path / "deletedTopics.json")
    again.load()
    assert [again.before(f"T{n}") for n in range(10)] == [0, 0, 0, 0, 0, 500, 600, 700, 700, 700]
    assert not again.is_full
