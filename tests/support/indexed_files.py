"""Files of a log that are found by index, without a visit to each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from message_store.store import MessageStore


class IndexedFiles(list[Any]):
    """List that the thread of its creation may index, slice and read from its end only."""

    def __init__(self, files: list[Any]) -> None:
        super().__init__(files)
        self._thread = threading.get_ident()

    def __iter__(self) -> Iterator[Any]:
        """Iterate; fail in the thread of the creation."""
        assert threading.get_ident() != self._thread, "all files of the log are visited"
        return super().__iter__()


@contextmanager
def forbid_visits(store: MessageStore) -> Iterator[None]:
    """Let the calling thread fail if it visits all files of a store's log inside the block."""
    assert len(store.log.files) > 1
    store.log.files = IndexedFiles(store.log.files)
    yield
    store.log.files = store.log.files[:]
