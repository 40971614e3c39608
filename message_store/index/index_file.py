"""Index file: `topic#key` to log offsets, in Apache's IndexFile layout.

    header 40 B | slots: newest item of each hash | items: hash, offset, seconds, previous item

Files are sparse and written through a mapping. Blocks are allocated before they are written,
because a write into a hole on a full disk would end the process.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duemq_common.errors import CorruptStore
from message_store.kernels import index as kernels
from message_store.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, Rows, packer
from message_store.log.page_guard import GuardedMap

HEADER = packer(INDEX_HEADER)
ALLOCATE_BYTES = 1 << 20  # items per allocation


class IndexFile:
    """One mapped index file. `slots` and `items` are its configured sizes.

    Attributes:
        words: (n,) u4: The file's bytes, writable.

    Raises:
        CorruptStore: The file has another size.
        OSError: The disk has no room for a new file, or the file cannot be opened.
    """

    def __init__(self, path: Path, slots: int, items: int, *, create: bool) -> None:
        self.path, self.slots, self.items = path, slots, items
        self.size = INDEX_HEADER.itemsize + slots * 4 + items * INDEX_ITEM.itemsize
        self._items_pos = INDEX_HEADER.itemsize + slots * 4
        self._allocated = 0  # file position up to which blocks are allocated
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        self._fd = os.open(path, flags, 0o644)
        try:
            if create:
                os.ftruncate(self._fd, self.size)
                self._allocate(1)
            elif os.fstat(self._fd).st_size != self.size:
                raise CorruptStore(
                    path,
                    0,
                    f"it has {os.fstat(self._fd).st_size} bytes, not {self.size}",
                    "Set maxHashSlotNum and maxIndexNum to what the store was written with, or "
                    "remove the index directory: it is rebuilt from the log.",
                )
            self._pages = GuardedMap(path, self._fd, self.size, writable=True)
            self._pages.read_at_random()
        except (OSError, CorruptStore):
            os.close(self._fd)
            if create:
                path.unlink(missing_ok=True)
            raise
        self._close = weakref.finalize(self, os.close, self._fd)
        self._map = self._pages.map
        self.words: npt.NDArray[np.uint32] = np.frombuffer(self._map, np.uint32)

    def _allocate(self, count: int) -> None:
        """Allocate blocks for header, slots and the first `count` items.

        Raises:
            OSError: The disk has no room.
        """
        needed = min(self._items_pos + count * INDEX_ITEM.itemsize, self.size)
        if needed > self._allocated:
            end = min(needed + ALLOCATE_BYTES, self.size)
            os.posix_fallocate(self._fd, self._allocated, end - self._allocated)
            self._allocated = end

    @property
    def header(self) -> tuple[int, int, int, int, int, int]:
        """begin_ms, end_ms, begin_phys, end_phys, used slots, item count (starts at 1)."""
        return HEADER.unpack_from(self._map)

    @property
    def end_ms(self) -> int:
        """Store time of the last record in it."""
        return self.header[1]

    @property
    def end_phys(self) -> int:
        """Log offset of its last record; in an empty file, of the previous file's last record."""
        return self.header[3]

    @property
    def is_empty(self) -> bool:
        """Whether the file has no items."""
        return self.header[5] <= 1

    @property
    def is_full(self) -> bool:
        """Whether the file has no room for another item."""
        return self.header[5] >= self.items

    @property
    def is_sound(self) -> bool:
        """Whether the header is valid."""
        begin_ms, end_ms, begin_phys, end_phys, _, count = self.header
        return min(begin_ms, end_ms, count) >= 0 <= begin_phys <= end_phys and count <= self.items

    @property
    def damage(self) -> str:
        """Reason why the file is unusable, or empty."""
        self._pages.update()
        return self._pages.reason

    def keys_of_last(self, phys_offset: int) -> int:
        """Return the number of items at the end that belong to the record at `phys_offset`."""
        start = INDEX_HEADER.itemsize + self.slots * 4
        items = np.frombuffer(self._map, INDEX_ITEM, self.items, start)
        number = self.header[5] - 1
        while number > 0 and items[number]["phys_offset"] == phys_offset:
            number -= 1
        return self.header[5] - 1 - number

    def cut(self, log_end: int) -> int:
        """Remove the items of records at or after a log offset; return their number.

        Items are in log order, so these are the last ones. Each contains the number of the previous
        item of its slot. The header keeps the store time of the last removed record.
        """
        begin_ms, end_ms, begin_phys, _, used, count = self.header
        items = np.frombuffer(self._map, INDEX_ITEM, self.items, self._items_pos)
        slots = np.frombuffer(self._map, INDEX_SLOT, self.slots, INDEX_HEADER.itemsize)
        number = count - 1
        while number > 0 and items[number]["phys_offset"] >= log_end:
            slot = int(items[number]["key_hash"]) % self.slots
            slots[slot] = items[number]["prev_index"]
            used -= int(slots[slot] == 0)
            number -= 1
        if number < count - 1:
            end_phys = int(items[number]["phys_offset"]) if number > 0 else begin_phys
            HEADER.pack_into(self._map, 0, begin_ms, end_ms, begin_phys, end_phys, used, number + 1)
        return count - 1 - number

    def inherit(self, previous: IndexFile) -> None:
        """Set the header to the end of the previous file, as Apache does."""
        _, end_ms, _, end_phys, _, _ = previous.header
        HEADER.pack_into(self._map, 0, end_ms, end_ms, end_phys, end_phys, 0, 1)

    def put(self, keys: Rows) -> int:
        """Add (n,) `layout.KEYED` until the file is full; return the number added."""
        self._allocate(max(self.header[5], 1) + keys.size)
        return int(kernels.put_keys(self.words, self.slots, self.items, keys))

    def find(self, key_hash: int, span: tuple[int, int], count_max: int) -> list[int]:
        """Return log offsets of a key hash stored within span (ms), newest first."""
        out = np.empty(count_max, np.int64)
        count = kernels.find_key(self.words, self.slots, key_hash, span, out)
        return [int(offset) for offset in out[:count]]

    def offsets_of(self, key_hash: int, piece_items: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the log offsets of all items with a hash, oldest first, piece by piece.

        For a hash with many items this is faster than following its chain.
        """
        start = INDEX_HEADER.itemsize + self.slots * 4
        count = min(self.header[5], self.items)
        items = np.frombuffer(self._map, INDEX_ITEM, count, start)
        for first in range(1, count, piece_items):
            block = items[first : first + piece_items]
            offsets = block["phys_offset"][block["key_hash"] == key_hash]
            yield offsets.astype(np.int64)

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the descriptor; the file can still be searched."""
        self._pages.forget_file()
        self._close()
