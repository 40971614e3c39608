"""Pages of all pending messages of a store, for exports: READ_PENDING (9017).

    header    cursor: empty for the first page
        response  0 + `PendingPage`

A page takes bounded work, and other requests run between its pieces. The request changes nothing,
so a client can repeat it. Levels come before timers, because a migration moves messages from levels
to timers: a message that it moves between two pages is returned twice rather than not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from delayed_delivery.pending import Found, Offsets, PendingMessages, Position
from duemq.net.pending_pages import PAGE_BYTES_MAX, PAGE_MESSAGES_MAX, PendingPage
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, StoreError
from duemq_common.request import Request, RequestHandler, Response
from message_store.index.key_search import frames

if TYPE_CHECKING:  # the commands start without the store
    from message_store.store import MessageStore

NO_PORTS: Final = (
    "this broker delivers no messages, so it does not know which are pending: export from its "
    "master, or stop it and export its store"
)
PIECES_MAX: Final = 64  # pieces of one page, most of them without pending messages


class PendingPages:
    """Pages of the pending messages of one store.

    Args:
        ports: Returns the components that own pending messages, timers first.
    """

    def __init__(self, store: MessageStore, ports: Callable[[], Sequence[PendingMessages]]) -> None:
        self.store, self._ports = store, ports

    async def page(self, cursor: str) -> PendingPage:
        """Return the next page.

        Args:
            cursor: Cursor of the page before; empty for the first page.
        Raises:
            ValueError: The text is not a cursor.
            StoreError: The pending messages are not known.
        """
        ports = list(reversed(self._ports()))
        if not ports:
            raise StoreError(NO_PORTS)
        index, position, log_offset = _parsed(cursor, len(ports))
        page = _Page(self.store)
        for _ in range(PIECES_MAX):
            if index == len(ports):
                return page.ended("")
            pending, following = ports[index].walk(position)
            next_offset = page.add(pending, log_offset)
            if next_offset is not None:
                return page.ended(_cursor(index, position, next_offset))
            log_offset = 0
            index, position = (index, following) if following else (index + 1, (0, 0))
            await asyncio.sleep(0)
        return page.ended(_cursor(index, position, 0) if index < len(ports) else "")


class _Page:
    """Page in progress."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._due_ms: list[int] = []
        self._sizes: list[int] = []
        self._records: list[memoryview] = []
        self._bytes = 0
        self._unreadable: list[int] = []

    def add(self, pending: Found, first_offset: int) -> int | None:
        """Add messages in order of their log offsets until the page is full.

        Args:
            first_offset: Log offset from which on messages are added.
        Returns:
            Log offset of the first message without room, None if all have room.
        """
        order = np.argsort(pending.offsets, kind="stable")
        order = order[pending.offsets[order] >= first_offset]
        offsets, due_ms = pending.offsets[order], pending.due_ms[order]
        sizes = frames(self._store, offsets)["record_size"].astype(np.int64)
        total = self._bytes + np.cumsum(sizes.clip(0))
        room = int(np.searchsorted(total, PAGE_BYTES_MAX, "right"))
        room = max(min(room, PAGE_MESSAGES_MAX - len(self._sizes)), 0 if self._sizes else 1)
        self._unreadable += offsets[:room][sizes[:room] <= 0].tolist()
        sound = sizes[:room] > 0
        self._read(offsets[:room][sound], due_ms[:room][sound], sizes[:room][sound])
        return int(offsets[room]) if room < offsets.size else None

    def _read(self, offsets: Offsets, due_ms: Offsets, sizes: Offsets) -> None:
        """Add records; consecutive ones are read as one block."""
        if not offsets.size:
            return
        gaps = np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1]) + 1
        firsts = [0, *gaps.tolist(), int(offsets.size)]
        for first, end in pairwise(firsts):
            size = int(sizes[first:end].sum())
            try:
                records = self._store.record_bytes(int(offsets[first]), size)
            except RecordUnreadable:
                self._unreadable += offsets[first:end].tolist()
                continue
            self._records.append(records)
            self._due_ms += due_ms[first:end].tolist()
            self._sizes += sizes[first:end].tolist()
            self._bytes += size

    def ended(self, cursor: str) -> PendingPage:
        """Return the page."""
        records = b"".join(self._records)
        return PendingPage(self._due_ms, self._sizes, records, cursor, self._unreadable)


class PendingPagesProcessor:
    """Handler of READ_PENDING (9017); arguments as `PendingPages`."""

    def __init__(self, store: MessageStore, ports: Callable[[], Sequence[PendingMessages]]) -> None:
        self._pages = PendingPages(store, ports)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.READ_PENDING: self.read}

    async def read(self, request: Request) -> Response:
        """Return the page at the cursor of the request."""
        try:
            page = await self._pages.page(request.fields.get("cursor", ""))
        except ValueError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        except StoreError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return Response(body=msgspec.msgpack.encode(page))


def _cursor(index: int, position: Position, log_offset: int) -> str:
    return f"{index}_{position[0]}_{position[1]}_{log_offset}"


def _parsed(cursor: str, ports: int) -> tuple[int, Position, int]:
    """Return index of the port, position of its walk, and log offset to continue from."""
    if not cursor:
        return 0, (0, 0), 0
    words = cursor.split("_")
    if len(words) != 4 or not all(word.isdecimal() and len(word) < 19 for word in words):
        raise ValueError(f"{cursor[:80]!r} is not a cursor of pending messages")
    index, part, offset, log_offset = map(int, words)
    if index >= ports:
        raise ValueError(f"{cursor[:80]!r} is not a cursor of this broker")
    return index, (part, offset), log_offset
