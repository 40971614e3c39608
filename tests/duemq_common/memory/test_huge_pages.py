"""Blocks of the heap that are in use become huge pages, others stay as they are."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from duemq_common.memory import huge_pages
from duemq_common.memory.huge_pages import (
    MADV_COLLAPSE,
    PAUSE_MS,
    ROUND_MS,
    HeapBlocks,
    block_bytes,
    collapse_rounds,
)

SIZE = 2 << 20
PAGES = SIZE // mmap.PAGESIZE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(name="memory")
def private_memory() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, 4 * SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a system with `always` would use one at once
        yield memory


def first_block(memory: mmap.mmap) -> int:
    """Return the address of the first whole block of a mapping."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return -(-start // SIZE) * SIZE


def touch(memory: mmap.mmap, address: int, pages: int) -> None:
    offset = address - ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in range(pages):
        memory[offset + page * mmap.PAGESIZE] = 1


@pytest.mark.parametrize(
    ("pages", "is_candidate"),
    [(0, False), (PAGES * 31 // 32 - 1, False), (PAGES * 31 // 32, True), (PAGES, True)],
)
def test_a_block_is_a_candidate_when_it_is_used(
    memory: mmap.mmap, pages: int, is_candidate: bool
) -> None:
    address = first_block(memory)
    touch(memory, address, pages)
    touch(memory, address + SIZE, PAGES)
    candidates = HeapBlocks(SIZE).candidates()
    assert (address in candidates) is is_candidate
    assert address + SIZE in candidates
    assert address + 2 * SIZE not in candidates


def has_collapse() -> bool:
    """Return whether the system has huge pages, and MADV_COLLAPSE."""
    major, minor = map(int, platform.release().split(".")[:2])
    return block_bytes() == SIZE and (major, minor) >= (6, 1)


def test_a_used_block_becomes_a_huge_page_once(memory: mmap.mmap) -> None:
    blocks, address = HeapBlocks(SIZE), first_block(memory)
    touch(memory, address, PAGES)
    memory.madvise(mmap.MADV_HUGEPAGE)
    assert blocks.collapse(address)
    assert blocks.collapsed_count == has_collapse()
    assert address not in blocks.candidates()
    memory.madvise(mmap.MADV_DONTNEED)
    assert address not in blocks.candidates()
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    touch(memory, address, PAGES)
    assert address in blocks.candidates()  # it is other memory now


def test_the_content_of_a_block_stays(memory: mmap.mmap) -> None:
    content = bytes(range(256)) * (len(memory) // 256)
    memory[:] = content
    memory.madvise(mmap.MADV_HUGEPAGE)
    assert HeapBlocks(SIZE).collapse(first_block(memory))
    assert memory[:] == content


def test_a_block_that_the_system_refuses_is_examined_once(memory: mmap.mmap) -> None:
    blocks, address = HeapBlocks(SIZE), first_block(memory)
    touch(memory, address, PAGES)  # of memory without huge pages
    assert blocks.collapse(address)
    assert blocks.collapsed_count == 0
    assert address not in blocks.candidates()


@pytest.mark.parametrize(
    ("reason", "has_memory", "is_candidate"),
    [
        (errno.EINVAL, True, False),
        (errno.EAGAIN, True, True),
        (errno.ENOMEM, False, True),
        (errno.EBUSY, False, True),  # the limit of a container
    ],
)
def test_reasons_of_the_system(
    memory: mmap.mmap, reason: int, has_memory: bool, is_candidate: bool
) -> None:
    calls = list[tuple[int, int, int]]()

    def refuse(address: int, size: int, advice: int) -> int:
        calls.append((address, size, advice))
        ctypes.set_errno(reason)
        return -1

    blocks, address = HeapBlocks(SIZE, refuse), first_block(memory)
    touch(memory, address, PAGES)
    assert blocks.collapse(address) is has_memory
    assert (address in blocks.candidates()) is is_candidate
    assert calls == [(address, SIZE, MADV_COLLAPSE)]
    assert blocks.collapsed_count == 0


@pytest.mark.parametrize(
    ("setting", "size", "expected"),
    [
        ("always [madvise] never", "2097152", SIZE),
        ("[always] madvise never", "33554432", 33_554_432),
        ("always madvise [never]", "2097152", 0),
        ("always [madvise] never", None, 0),
        (None, "2097152", 0),
    ],
)
def test_the_setting_of_the_system(
    setting: str | None,
    size: str | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    for name, text in (("enabled", setting), ("hpage_pmd_size", size)):
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    assert block_bytes() == expected


class CountedBlocks(HeapBlocks):
    """Blocks at the addresses 1 to 3, of which the system has memory for some."""

    def __init__(self, free: int) -> None:
        super().__init__(SIZE)
        self.free, self.events = free, list[object]()

    def candidates(self) -> list[int]:
        self.events.append("search")
        return [1, 2, 3]

    def collapse(self, address: int) -> bool:
        self.events.append(address)
        self.free -= 1
        return self.free >= 0


class CountedWaits(FakeClock):
    """Clock that adds its waits to the events, and ends the rounds at one of them."""

    def __init__(self, events: list[object], count: int) -> None:
        super().__init__()
        self._events, self._left = events, count

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        assert until_ms is not None
        self._events.append(f"{until_ms - self.now_ms()} ms")
        self._left -= 1
        if not self._left:
            event.set()


ROUND, PAUSE = f"{ROUND_MS} ms", f"{PAUSE_MS} ms"
FIRST = [ROUND, "search", 1, PAUSE]


@pytest.mark.parametrize(
    ("free", "waits", "events"),
    [
        (9, 1, [ROUND]),
        (9, 2, FIRST),
        (9, 6, [*FIRST, 2, PAUSE, 3, PAUSE, *FIRST]),
        (1, 4, [*FIRST, 2, ROUND, "search", 1, ROUND]),
    ],
)
def test_rounds(free: int, waits: int, events: list[object]) -> None:
    blocks = CountedBlocks(free)
    clock = CountedWaits(blocks.events, waits)
    asyncio.run(collapse_rounds(blocks, clock, asyncio.Event()))
    assert blocks.events == events


def test_memory_that_cannot_be_examined_has_no_huge_pages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unreadable(CountedBlocks):
        def candidates(self) -> list[int]:
            raise PermissionError(13, "Permission denied", "/proc/self/pagemap")

    blocks = Unreadable(9)
    caplog.set_level("INFO")
    asyncio.run(collapse_rounds(blocks, CountedWaits(blocks.events, 9), asyncio.Event()))
    assert blocks.events == [ROUND]
    assert "the heap has no huge pages: [Errno 13]" in caplog.text


def test_an_error_within_the_context_is_raised_as_it_is() -> None:
    async def scene() -> None:
        async with huge_pages.huge_pages(FakeClock()):
            raise LookupError("the broker's own")

    with pytest.raises(LookupError, match="the broker's own"):
        asyncio.run(scene())
