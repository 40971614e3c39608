"""Copies of stores: consistent while the store is written, and complete when it is closed."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import StoreError, UsageError
from message_store import store_copy
from message_store.store import MessageStore
from message_store.store_copy import BLOCK_BYTES, copy_file, copy_store
from message_store.verify import verify_store
from schedule_service.verify import LEVELS
from tests.message_store.test_store import bodies
from tests.support.level_rig import level_service
from tests.support.stores import open_store, put_one

BODY = bytes(700)


def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        put_one(store, "T", body=b"%d" % number + BODY, properties={"KEYS": f"k{number % 7}"})


def numbers(store: MessageStore) -> list[bytes]:
    return [body.removesuffix(BODY) for body in bodies(store, "T")]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 8 * BLOCK_BYTES + 5])
def test_a_copy_of_a_file_has_no_room_for_zeros(tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(size))
    with source.open("r+b") as file:
        file.seek(min(3 * BLOCK_BYTES + 7, size))
        file.write(b"data")
    target.write_bytes(b"former" * 100)
    copy_file(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 <= 2 * BLOCK_BYTES
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns


@pytest.mark.parametrize("links", [False, True])
def test_a_closed_store_is_copied_completely(tmp_path: Path, links: bool) -> None:
    root, target = tmp_path / "store", tmp_path / "copy"
    with open_store(root) as store:
        fill(store, 300)
        assert len(store.log.files) > 2
        files = len(store.log.files)
    (root / "timerwheel").write_bytes(b"x")
    copied = copy_store(root, target, links=links)
    assert not copied.was_running
    assert (target / "timerwheel").read_bytes() == b"x"
    assert not (target / "lock").exists()
    assert copied.linked == (files - 1 if links else 0)
    if links:
        first = "0" * 20
        assert os.path.samefile(root / "commitlog" / first, target / "commitlog" / first)
        with pytest.raises(StoreError, match="duemq store copy"):
            open_store(target).__enter__()
        target = tmp_path / "second"
        copy_store(tmp_path / "copy", target)
    (target / "timerwheel").unlink()
    with open_store(target) as store:
        assert numbers(store) == [b"%d" % n for n in range(300)]
    assert verify_store(target).ok


@pytest.mark.finding("3D8")
@pytest.mark.parametrize("links", [False, True])
def test_a_copy_of_a_running_store_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Messages are stored, and become due, between any two files."""
    root, target = tmp_path / "store", tmp_path / "copy"

    async def steps() -> None:
        async with level_service(root, commitlog_file_bytes=65_536) as rig:
            sent = 0
            for _ in range(40):
                rig.send(1, b"%d" % sent + BODY, KEYS=f"k{sent % 7}")
                sent += 1
            await rig.advance(1_000)
            before = sent
            loop, file = asyncio.get_running_loop(), store_copy.StoreCopy.file

            def write(copy: object, *args: object, **options: object) -> None:
                nonlocal sent
                rig.send(1, b"%d" % sent + BODY, KEYS=f"k{sent % 7}")
                sent += 1
                asyncio.run_coroutine_threadsafe(next_turn(), loop).result()
                file(copy, *args, **options)

            async def next_turn() -> None:
                await rig.advance(300)
                rig.store.index.catch_up()
                await rig.persist()

            with monkeypatch.context() as patch:
                patch.setattr(store_copy.StoreCopy, "file", write)
                copied = await asyncio.to_thread(copy_store, root, target, links=links)
            assert copied.was_running
            clock = rig.clock
        place = target
        if links:
            place = tmp_path / "second"
            copy_store(target, place)
        async with level_service(place, clock, commitlog_file_bytes=65_536) as rig:
            await rig.advance(1_000)
            found = Counter(body.removesuffix(BODY) for body in rig.bodies())
            assert found == {b"%d" % number: 1 for number in range(len(found))}
            assert before < len(found) <= sent
        report = verify_store(place, parts=[LEVELS])
        assert report.ok, [str(finding) for finding in report.findings]

    asyncio.run(steps())


@pytest.mark.parametrize("links", [False, True])
def test_a_file_of_the_log_that_becomes_full_while_it_is_copied_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Messages fill the newest file after its bytes were read, and the log begins the next one."""
    root, target = tmp_path / "store", tmp_path / "copy"
    with open_store(root) as store:
        fill(store, 100)
        sent, files_max, file = 100, len(store.log.files) + 3, store_copy.StoreCopy.file

        def fill_file(
            copy: store_copy.StoreCopy, source: Path, target: Path, *, link: bool = False
        ) -> None:
            nonlocal sent
            file(copy, source, target, link=link)
            count = len(store.log.files)
            while store.log.files[-1].path == source and count < files_max:
                put_one(store, "T", body=b"%d" % sent + BODY)
                sent += 1

        monkeypatch.setattr(store_copy.StoreCopy, "file", fill_file)
        copied = copy_store(root, target, links=links)
        assert copied.files == sum(len(files) for _, _, files in os.walk(target)) - links
        assert copied.linked == links
    if links:
        (target / store_copy.LINKED_FILE).unlink()
    with open_store(target) as store:
        assert numbers(store) == [b"%d" % number for number in range(sent)]
        assert len(store.log.files) == files_max


def test_an_empty_file_of_the_log_does_not_seal_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Apache broker creates the next file of the log before the current one is full."""
    root, target = tmp_path / "store", tmp_path / "copy"
    with open_store(root) as store:
        fill(store, 30)
        newest = store.log.files[-1]
        following = newest.path.with_name(f"{newest.base + newest.size:020d}")
        following.touch()
        os.truncate(following, newest.size)
        tree = store_copy.StoreCopy.tree

        def store_more(copy: store_copy.StoreCopy, path: Path) -> None:
            tree(copy, path)
            if path.name == "config":
                put_one(store, "T", body=b"30" + BODY)

        monkeypatch.setattr(store_copy.StoreCopy, "tree", store_more)
        copy_store(root, target)
        following.unlink()
    with open_store(target) as store:
        assert numbers(store) == [b"%d" % number for number in range(31)]


def test_a_file_that_retention_removes_meanwhile_is_skipped(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with open_store(root, FakeClock()) as store:
        fill(store, 300)
    copy = store_copy.StoreCopy(root, tmp_path / "copy", store_copy.Copied())
    copy.file(root / "commitlog" / "absent", tmp_path / "copy" / "absent")
    assert copy.result.files == 0
    assert not (tmp_path / "copy" / "absent").exists()


@pytest.mark.parametrize("where", ["store/below", "full"])
def test_a_wrong_directory_is_refused(tmp_path: Path, where: str) -> None:
    root = tmp_path / "store"
    with open_store(root) as store:
        fill(store, 3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UsageError):
        copy_store(root, tmp_path / where)
    with pytest.raises(UsageError):
        copy_store(tmp_path / "absent", tmp_path / "copy")
    shutil.rmtree(root)
