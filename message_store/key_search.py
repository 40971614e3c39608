"""Records looked up by many keys at once; `StoreReader.query_keys` is the way for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from message_store import layout
from message_store.errors import StoreError
from message_store.kernels import keys as kernels
from message_store.text import java_hash

if TYPE_CHECKING:
    from message_store.reader import StoreReader

Offsets = npt.NDArray[np.int64]
CATCH_UP_BYTES_MAX = 64 << 20
PAIRS_MIN = 1_024
HIT_UNIQUE, HIT_KEY = kernels.HIT_UNIQUE, kernels.HIT_KEY


@dataclass(frozen=True, slots=True)
class Matches:
    """Records that have one of the keys asked for, by key, then by log offset.

    Attributes:
        key_at: (n,) i8: which key.
        offsets: (n,) i8: log offsets.
        hits: (n,) u1: HIT_UNIQUE or HIT_KEY.
    """

    key_at: Offsets
    offsets: Offsets
    hits: npt.NDArray[np.uint8]


def search(store: StoreReader, topic: str, keys: Sequence[str], *, each_max: int) -> Matches:
    """Return the records of a topic that have one of `keys` as UNIQ_KEY or among their KEYS.

    Args:
        each_max: candidates looked at per key and index file, newest first.

    Raises:
        StoreError: The index is switched off, or far behind the log.
    """
    _catch_up(store)
    encoded = [key.encode() for key in keys]
    wanted = kernels.Wanted(
        np.frombuffer(topic.encode(), np.uint8).copy(),
        np.frombuffer(b"".join(encoded) or b"\0", np.uint8).copy(),
        np.cumsum([len(key) for key in encoded], dtype=np.int64),
    )
    hashes = np.empty(len(encoded), np.int64)
    kernels.hash_keys(java_hash(topic + "#"), wanted.keys, wanted.ends, hashes)
    key_at, offsets = _candidates(store, hashes, each_max)
    return _matching(store, wanted, key_at, offsets)


def _catch_up(store: StoreReader) -> None:
    index = store.index
    if not index.enabled:
        raise StoreError(
            "messageIndexEnable is false: messages cannot be looked up by key. Name them by their "
            "offset message id."
        )
    index.catch_up(bytes_max=CATCH_UP_BYTES_MAX)
    if index.behind_bytes:
        raise StoreError(
            f"the key index is {index.behind_bytes} bytes behind the log: try again in a moment"
        )


def _candidates(store: StoreReader, hashes: Offsets, each_max: int) -> tuple[Offsets, Offsets]:
    """Return (which key, log offset), no pair twice, by log offset."""
    room = max(each_max, min(4 * hashes.size, PAIRS_MIN << 8), PAIRS_MIN)
    key_at, offsets = np.empty((2, room), np.int64)
    pieces: list[tuple[Offsets, Offsets]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for file in store.index.files():
        first = 0
        while first < hashes.size:
            first, count = kernels.find_many(
                file.words, file.slots, hashes, first, each_max, key_at, offsets
            )
            pieces.append((key_at[:count].copy(), offsets[:count].copy()))
    keys, found = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
    order = np.lexsort((keys, found))
    keys, found = keys[order], found[order]
    fresh = np.ones(found.size, np.bool_)
    fresh[1:] = (np.diff(found) != 0) | (np.diff(keys) != 0)
    return keys[fresh], found[fresh]


def _matching(
    store: StoreReader, wanted: kernels.Wanted, key_at: Offsets, offsets: Offsets
) -> Matches:
    hits = np.zeros(offsets.size, np.uint8)
    frames = np.zeros(1, layout.SCANNED)
    for file in list(store.log.files):
        low, high = np.searchsorted(offsets, (file.base, file.base + file.size))
        if low < high:
            span = (file.base, min(file.size, store.log.end - file.base))
            kernels.match_keys(
                file.data, span, key_at[low:high], offsets[low:high], wanted, frames,
                hits[low:high],
            )  # fmt: skip
    keep = np.flatnonzero(hits)
    keep = keep[np.argsort(key_at[keep], kind="stable")]
    return Matches(key_at[keep], offsets[keep], hits[keep])


def frames(store: StoreReader, offsets: Offsets) -> npt.NDArray[Any]:
    """Return (n,) `layout.SCANNED` of the records at log offsets; record_size 0: there is none."""
    found = np.zeros(offsets.size, layout.SCANNED)
    found["topic_index"] = -1
    order = np.argsort(offsets, kind="stable")
    ranked = offsets[order]
    for file in list(store.log.files):
        low, high = np.searchsorted(ranked, (file.base, file.base + file.size))
        if low < high:
            mine = np.zeros(high - low, layout.SCANNED)
            span = (file.base, min(file.size, store.log.end - file.base))
            kernels.frames_at(file.data, span, ranked[low:high], store.topics.arrays, mine)
            found[order[low:high]] = mine
    return found
