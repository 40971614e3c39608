"""Search for records of many keys; `StoreReader.query_keys` searches for one.

    index files   candidates by hash: short chains on the event loop; a longer one is found by
                  reading all items, piece by piece, in a thread. Lookups in many files are
                  done at the same time, because their pages may have to be read
    log tail      records that are not indexed yet (a full disk pauses the index)
    log           which candidates are records of the topic with the key itself

A search finds every record with a key that is in the log when it returns, or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from duemq_common.errors import StoreError
from duemq_common.text import java_hash
from message_store import layout
from message_store.index.index_file import IndexFile
from message_store.index.log_tail import keys_of_log
from message_store.kernels import keys as kernels
from message_store.layout import Rows
from message_store.log.page_guard import PAGE_BYTES
from message_store.log.prefetch import prefetch
from message_store.reader import StoreReader

Offsets = npt.NDArray[np.int64]
Candidates = tuple[Offsets, Offsets]  # (n,) index of the key, (n,) log offset
FEW = 64  # maximum candidates of a key in one index file that are checked on the event loop
LOOP_PROBES_MAX = 64  # maximum lookups in old index files, which may not be in the page cache
LOOKUPS_PER_FILE = 4  # parts of the keys that are looked up at the same time
LOOP_BYTES_MAX = 1 << 20  # maximum bytes of the log without index that are read on the event loop
TAIL_BYTES_MAX = 1 << 30  # maximum bytes of the log without index; more is an error
RECORDS_MAX = 1_000_000  # maximum records found by one search; more is an error
PAIRS_MIN, PAIRS_MAX = 1_024, 1 << 18
ITEMS_PIECE = 1 << 18  # items of an index file that are read at a time in a thread
HIT_UNIQUE, HIT_KEY = kernels.HIT_UNIQUE, kernels.HIT_KEY


class Matches(Struct, frozen=True):
    """Records that have one of the requested keys, by key, then by log offset.

    Attributes:
        key_at: (n,) i8: Index of the key.
        offsets: (n,) i8: Log offsets.
        hits: (n,) u1: HIT_UNIQUE or HIT_KEY.
        log_end: Log offset before which the log was searched.
    """

    key_at: Offsets
    offsets: Offsets
    hits: npt.NDArray[np.uint8]
    log_end: int = 0


class _LongChain(Exception):
    """Signal: a key has more candidates than the event loop checks."""


async def search(store: StoreReader, topics: Sequence[str], keys: Sequence[str]) -> Matches:
    """Return the records of some topics that have one of `keys` as UNIQ_KEY or among their KEYS.

    There is no await after the last read of the log, so the result is complete when it is returned.

    Raises:
        StoreError: The index is disabled or too far behind the log, or too many records match.
    """
    job = _Search(store, topics, keys)
    if not job.run_on_loop():
        lookups = job.lookups(store.log.end)
        try:
            await asyncio.gather(*(asyncio.to_thread(lookup.read) for lookup in lookups))
            await asyncio.to_thread(job.run, lookups, store.log.end)
            await job.follow_to_end()
        except asyncio.CancelledError:
            job.is_cancelled = True  # its thread goes on until it reads this
            raise
    return job.matches()


async def search_later(
    store: StoreReader, topics: Sequence[str], keys: Sequence[str], log_end: int
) -> Matches:
    """Return the records from `log_end` on, that of an earlier `search`; see there."""
    job = _Search(store, topics, keys)
    job.end = log_end
    await job.follow_to_end()
    return job.matches()


def search_now(store: StoreReader, topics: Sequence[str], keys: Sequence[str]) -> Matches:
    """Do a `search` in the calling thread, for callers that cannot await.

    Raises:
        StoreError: The index is disabled or too far behind the log, or too many records match.
    """
    job = _Search(store, topics, keys)
    if not job.run_on_loop():
        job.run(job.lookups(store.log.end), store.log.end)
    return job.matches()


class _Search:
    """One search.

    Attributes:
        end: Log offset up to which the log was searched.
        is_cancelled: Whether a thread that searches ends, and its results are not used.
    """

    def __init__(self, store: StoreReader, topics: Sequence[str], keys: Sequence[str]) -> None:
        if not store.index.enabled:
            raise StoreError(
                "messageIndexEnable is false: messages cannot be looked up by key. Name them by "
                "their offset message id."
            )
        self._store = store
        self._parts: list[Matches] = []
        self._count = 0
        self.end, self.is_cancelled = 0, False
        encoded = [key.encode("utf-8", "surrogatepass") for key in keys]
        self._text = np.frombuffer(b"".join(encoded) or b"\0", np.uint8).copy()
        self._ends = np.cumsum([len(key) for key in encoded], dtype=np.int64)
        self._topics = topics
        hashes = np.empty((len(topics), len(encoded)), np.int64)
        for row, topic in enumerate(topics):
            kernels.hash_keys(java_hash(topic + "#"), self._text, self._ends, hashes[row])
        self._hashes: Offsets = hashes.ravel()  # (topics * keys,)

    def run_on_loop(self) -> bool:
        """Search if the event loop has time for it; return whether the search was done."""
        store = self._store
        store.index.catch_up()
        files, position = store.index.indexed()
        if store.log.end - position > LOOP_BYTES_MAX:
            return False
        if self._hashes.size * (len(files) - 1) > LOOP_PROBES_MAX:
            return False
        try:
            for file in files:
                for pair in _in_file(file, self._hashes, long_chains=False):
                    self._match(pair)
        except _LongChain:
            self._parts.clear()
            self._count = 0
            return False
        self.end = position
        self.follow(store.log.end)
        return True

    def lookups(self, end: int) -> list[FileLookup]:
        """Return the lookups in index files that find all keys before a log offset.

        Raises:
            StoreError: The index is too far behind the log.
        """
        files, self.end = self._store.index.indexed()
        if end - self.end > TAIL_BYTES_MAX:
            raise StoreError(
                f"the key index is {end - self.end} bytes behind the log: try again later, or name "
                f"messages by their offset message id"
            )
        step = max(1, -(-self._hashes.size // LOOKUPS_PER_FILE))
        return [
            FileLookup(file, first, self._hashes[first : first + step])
            for file in files
            for first in range(0, self._hashes.size, step)
        ]

    def run(self, lookups: Sequence[FileLookup], end: int) -> None:
        """Search all of the log before `end`. Any thread may call it."""
        for lookup in lookups:
            for pair in lookup.candidates():
                if self.is_cancelled:
                    return
                self._match(pair)
        self.follow(end)

    def follow(self, end: int) -> None:
        """Search the log from the end of the previous search to `end`. Any thread may call it."""
        for keyed in keys_of_log(self._store.log, self.end, end):
            if self.is_cancelled:
                return
            self._match(_with_hashes(keyed, self._hashes))
        self.end = max(self.end, end)

    async def follow_to_end(self) -> None:
        """Search the log up to its end; there is no await after the last part."""
        log = self._store.log
        while log.end - self.end > LOOP_BYTES_MAX:
            await asyncio.to_thread(self.follow, log.end)
        self.follow(log.end)

    def _match(self, pair: Candidates) -> None:
        """Add the candidates that are records of their topic and have their key.

        Args:
            pair: (n,) index in `_hashes`, and log offset.
        """
        topic_at, key_at = np.divmod(pair[0], self._ends.size) if pair[0].size else pair
        for topic in np.unique(topic_at).tolist():
            rows = topic_at == topic
            self._match_topic(self._topics[topic], (key_at[rows], pair[1][rows]))

    def _match_topic(self, topic: str, pair: Candidates) -> None:
        name = np.frombuffer(topic.encode("utf-8", "surrogatepass"), np.uint8).copy()
        keys = kernels.QueryKeys(name, self._text, self._ends)
        order = np.lexsort(pair)
        matches = _matching(self._store, keys, pair[0][order], pair[1][order])
        self._count += matches.offsets.size
        if self._count > RECORDS_MAX:
            raise StoreError(
                f"more than {RECORDS_MAX} messages have these keys: name fewer, or name messages "
                f"by topic and time"
            )
        self._parts.append(matches)

    def matches(self) -> Matches:
        """Return the results, without duplicates of a key and a record.

        Raises:
            StoreError: An index file could not be read; try again.
        """
        self._store.index.check()
        none = Matches(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
        parts = [none, *self._parts]
        key_at = np.concatenate([part.key_at for part in parts])
        offsets = np.concatenate([part.offsets for part in parts])
        hits = np.concatenate([part.hits for part in parts])
        order = np.lexsort((offsets, key_at))
        key_at, offsets, hits = key_at[order], offsets[order], hits[order]
        fresh = np.ones(offsets.size, np.bool_)
        fresh[1:] = (np.diff(offsets) != 0) | (np.diff(key_at) != 0)
        return Matches(key_at[fresh], offsets[fresh], hits[fresh], self.end)


class FileLookup:
    """Lookup of some hashes in one index file.

    Its pages may have to be read from the disk, so the lookups of a search are done at the same
    time. Any thread may call a method.

    Args:
        first: Index of the first hash among those of the search.
    """

    def __init__(self, file: IndexFile, first: int, hashes: Offsets) -> None:
        self._file, self._first, self._hashes = file, first, hashes
        self._pairs: list[Candidates] | None = None

    def read(self) -> None:
        """Look the hashes up, unless one of them has many candidates."""
        with suppress(_LongChain):
            self._pairs = list(_in_file(self._file, self._hashes, long_chains=False))

    def candidates(self) -> Iterator[Candidates]:
        """Yield the candidates."""
        pairs: Iterable[Candidates] | None = self._pairs
        if pairs is None:
            pairs = _in_file(self._file, self._hashes, long_chains=True)
        for key_at, offsets in pairs:
            yield key_at + self._first, offsets


def _in_file(file: IndexFile, hashes: Offsets, *, long_chains: bool) -> Iterator[Candidates]:
    """Yield the candidates for some hashes in one index file.

    Raises:
        _LongChain: A hash has more than FEW of them, and `long_chains` is False.
    """
    room = max(FEW, min(4 * hashes.size, PAIRS_MAX), PAIRS_MIN)
    key_at, offsets = np.empty((2, room), np.int64)
    first = 0
    while first < hashes.size:
        first, count = kernels.find_many(
            file.words, file.slots, hashes, first, FEW, key_at, offsets
        )
        candidates = key_at[:count].copy()
        long = np.flatnonzero(np.bincount(candidates) >= FEW) if count else candidates
        if long.size and not long_chains:
            raise _LongChain
        keep = ~np.isin(candidates, long)
        yield candidates[keep], offsets[:count][keep]
        for key in long.tolist():
            for block in file.offsets_of(int(hashes[key]), ITEMS_PIECE):
                yield np.full(block.size, key, np.int64), block


def _with_hashes(keyed: Rows, hashes: Offsets) -> Candidates:
    """Return the candidates for some hashes among the keys of records."""
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    key_hashes = keyed["key_hash"].astype(np.int64)
    low, high = np.searchsorted(ranked, key_hashes), np.searchsorted(ranked, key_hashes, "right")
    counts = high - low
    position = (
        np.repeat(low, counts)
        + np.arange(counts.sum())
        - np.repeat(np.cumsum(counts) - counts, counts)
    )
    return order[position].astype(np.int64), np.repeat(
        keyed["phys_offset"].astype(np.int64), counts
    )


def _matching(
    store: StoreReader, keys: kernels.QueryKeys, key_at: Offsets, offsets: Offsets
) -> Matches:
    prefetch(store.log, offsets, PAGE_BYTES)
    hits = np.zeros(offsets.size, np.uint8)
    frames = np.zeros(1, layout.SCANNED)
    for file, low, high in store.files_of(offsets):
        kernels.match_keys(
            file.data,
            store.written_span(file),
            key_at[low:high],
            offsets[low:high],
            keys,
            frames,
            hits[low:high],
        )
    keep = np.flatnonzero(hits)
    keep = keep[np.argsort(key_at[keep], kind="stable")]
    return Matches(key_at[keep], offsets[keep], hits[keep])


def frames(store: StoreReader, offsets: Offsets) -> Rows:
    """Return (n,) `layout.SCANNED` of the records at log offsets; record_size is 0 without one."""
    rows = np.zeros(offsets.size, layout.SCANNED)
    rows["topic_index"] = -1
    for file, in_file in store.indexes_by_file(offsets):
        part = np.zeros(in_file.size, layout.SCANNED)
        span, arrays = store.written_span(file), store.topics.arrays
        kernels.frames_at(file.data, span, offsets[in_file], arrays, part)
        rows[in_file] = part
    return rows


def owners(store: StoreReader, offsets: Offsets) -> tuple[Offsets, list[bytes]]:
    """Return topic index and unique key of the records at log offsets.

    Returns:
        (n,) i8 index of the topic that each record is for, -1 if it is not known or there is no
        record; the unique keys, empty without one.
    """
    topic_indexes, keys = np.full(offsets.size, -1, np.int64), [b""] * offsets.size
    scratch, arrays = np.zeros(1, layout.SCANNED), store.topics.arrays
    for file, in_file in store.indexes_by_file(offsets):
        part, bounds = np.empty(in_file.size, np.int64), np.empty((in_file.size, 2), np.int64)
        span = store.written_span(file)
        kernels.owners_at(file.data, span, offsets[in_file], arrays, scratch, part, bounds)
        topic_indexes[in_file] = part
        data = file.data.data
        for index, (start, end) in zip(in_file.tolist(), bounds.tolist(), strict=True):
            keys[index] = bytes(data[start:end])
    return topic_indexes, keys


def query_of(topic: str, unique_keys: Sequence[bytes]) -> kernels.QueryKeys:
    """Return the query for `are_owned`: the unique key of each record, and the topic of all.

    Args:
        topic: Topic that the records are for; empty: any.
    """
    return kernels.QueryKeys(
        np.frombuffer(topic.encode("utf-8", "surrogatepass"), np.uint8).copy(),
        np.frombuffer(b"".join(unique_keys), np.uint8).copy(),
        np.cumsum([len(key) for key in unique_keys], dtype=np.int64),
    )


def are_owned(
    store: StoreReader, offsets: Offsets, query: kernels.QueryKeys, first: int
) -> npt.NDArray[np.bool_]:
    """Return (n,) b1: which records at log offsets have their unique key and the topic.

    Args:
        first: Index in `query` of the key of offsets[0]; the others follow.
    """
    is_owned, frames = np.zeros(offsets.size, np.bool_), np.zeros(1, layout.SCANNED)
    for file, in_file in store.indexes_by_file(offsets):
        kernels.owned_at(
            file.data, store.written_span(file), in_file, offsets, first, query, frames, is_owned
        )
    return is_owned
