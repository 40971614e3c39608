"""Check of index files against the log: items have their keys, keys have their items.

A file does not store its number of slots. `find_shape` derives it: the header repeats the log
offsets of the first and the last item, and every item must be in the chain of its slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duemq_common.existence import is_directory, is_file
from message_store import layout
from message_store.kernels import index as index_kernels
from message_store.kernels import verify as kernels
from message_store.layout import Row, Rows
from message_store.log.frames import Chunk, read_past_damage
from message_store.ranges import is_among
from message_store.verify.files import Bytes, Piece, map_file, overlapping, used_bytes
from message_store.verify.log import LogSummary, pieces_of
from message_store.verify.report import Progress, Report, Severity

APACHE_SHAPE = (5_000_000, 20_000_000)  # maxHashSlotNum, maxIndexNum
BLOCK_ITEMS = 65_536
CANDIDATES_MAX = 256
PROBE_ITEMS = 2_000
PHASE = "index"
HEADER_BYTES = layout.INDEX_HEADER.itemsize
ITEM_BYTES = layout.INDEX_ITEM.itemsize

FAULTS = {
    kernels.NO_RECORD: "there is no record at log offset {phys}",
    kernels.NO_KEY: "the record at log offset {phys} has no key with this hash",
    kernels.WRONG_TIME: "its time is not that of the record at log offset {phys}",
    kernels.ELSEWHERE: "log offset {phys} is in a file that is missing",
}
KINDS = {kernels.NO_KEY: "item-key", kernels.WRONG_TIME: "item-time"}


@dataclass(frozen=True, slots=True)
class IndexPiece:
    """Index file. Items are numbered from 1; `count` is the number after the last."""

    path: Path
    data: Bytes
    slots: int
    count: int
    begin_ms: int

    def item_pos(self, number: int) -> int:
        """Return the position of an item in the file."""
        return HEADER_BYTES + self.slots * layout.INDEX_SLOT.itemsize + number * ITEM_BYTES

    def items(self, first: int, count: int) -> Rows:
        """Return (n,) `layout.KEYED` from item `first` on."""
        out = np.zeros(max(min(count, self.count - first), 0), layout.KEYED)
        kernels.read_items(self.data, self.slots, first, self.begin_ms, out)
        if first == 1:  # the time of item 1 counts from the file before
            out[:1]["store_ms"] = self.begin_ms
        out["at_begin"] = out["store_ms"] == self.begin_ms
        return out


def check_index(
    directory: Path, summary: LogSummary, report: Report, progress: Progress, *, slots: int = 0
) -> None:
    """Compare all index files with the log. `slots`: maxHashSlotNum if known, else 0."""
    paths = sorted(p for p in directory.iterdir() if is_file(p)) if is_directory(directory) else []
    report.figures["index_files"] = len(paths)
    for name in (
        "index_items",
        "index_items_expired",
        "index_items_behind_log",
        "index_items_of_damage",
        "keys_missing",
    ):
        report.count(name, 0)
    files = []
    for done, path in enumerate(paths):
        progress(PHASE, done, len(paths))
        file = _open(path, summary, report, slots)
        if file is not None:
            files.append(file)
            _check_items(file, summary, report)
    for file, after in zip_longest(files, files[1:]):
        if file is not None:
            _check_chains(file, after, report)
    if files and summary.pieces:
        _Keys(files, summary, report).check()
    progress(PHASE, len(paths), len(paths))


def _open(path: Path, summary: LogSummary, report: Report, slots: int) -> IndexPiece | None:
    """Map a file and find its slot count; report a file that has none."""
    if not (path.name.isascii() and path.name.isdigit()):
        text = "its name is not a time, so no broker starts; move it away"
        report.add("warning", "stray-file", path, 0, text)
        return None
    try:
        data = map_file(path)
    except OSError as error:
        report.add("error", "unreadable-file", path, 0, f"it cannot be read: {error}")
        return None
    if data.size < HEADER_BYTES:
        report.add("error", "index-size", path, int(data.size), "it is shorter than its header")
        return None
    header = np.frombuffer(data[:HEADER_BYTES], layout.INDEX_HEADER)[0]
    count = max(int(header["index_count"]), 1)
    shape = find_shape(data, header, slots)
    if count == 1 and used_bytes(data, HEADER_BYTES):
        text = "its header counts no items, but it has some: a broker finds none of their keys"
        severity: Severity = "warning" if summary.crashed else "error"
        report.add(severity, "index-shape", path, 0, text)
        return None
    if shape is None:
        text = (
            "its header does not fit its items: remove the file, a broker rebuilds what the log "
            "still has"
        )
        report.add("error", "index-shape", path, 0, text)
        return None
    return IndexPiece(path, data, shape, count, int(header["begin_ms"]))


def find_shape(data: Bytes, header: Row, slots: int = 0) -> int | None:
    """Return the slot count of an index file, None if no count fits its header.

    Args:
        data: (n,) u1, the file. header: one `layout.INDEX_HEADER`.
        slots: Slot count that is tried first; 0: none.
    """
    count = max(int(header["index_count"]), 1)
    words = int(data.size) - HEADER_BYTES
    if words % 4:
        return None
    if count == 1:
        return slots or 1
    apache_slots, apache_items = APACHE_SHAPE
    slot_counts = [slots] if slots else []
    if words == apache_slots * 4 + apache_items * ITEM_BYTES:
        slot_counts.append(apache_slots)
    candidates = chain(slot_counts, _candidates(data, header, count))
    return next((n for n in candidates if _fits(data, n, count)), None)


def _candidates(data: Bytes, header: Row, count: int) -> Iterator[int]:
    """Yield the slot counts with which first and last item match the header, largest first.

    Unused items and slots are zero: without the hash they equal an item of the log's first record.
    """
    words = (int(data.size) - HEADER_BYTES) // 4
    first = words % 5 or 5  # slots = words - 5 x items
    start = HEADER_BYTES + first * 4 + ITEM_BYTES  # item 1, with `first` slots
    tries = (int(data.size) - start) // ITEM_BYTES - (count - 2)
    if tries <= 0:
        return
    items = np.frombuffer(data, layout.INDEX_ITEM, tries + count - 2, start)
    hashes, offsets = items["key_hash"], items["phys_offset"]
    fits = (offsets[:tries] == header["begin_phys"]) & (hashes[:tries] != 0)
    fits &= (offsets[count - 2 :] == header["end_phys"]) & (hashes[count - 2 :] != 0)
    yield from (first + 5 * int(n) for n in np.flatnonzero(fits)[-CANDIDATES_MAX:][::-1])


def _fits(data: Bytes, slots: int, count: int) -> bool:
    """Return whether the last items are in chains of `slots` slots."""
    if slots < 1 or HEADER_BYTES + slots * 4 + count * ITEM_BYTES > data.size:
        return False
    good = probed = 0
    for number in range(max(1, count - PROBE_ITEMS), count):
        position = HEADER_BYTES + slots * 4 + number * ITEM_BYTES
        item = np.frombuffer(data[position : position + ITEM_BYTES], layout.INDEX_ITEM)[0]
        slot = HEADER_BYTES + int(item["key_hash"]) % slots * 4
        newest = int(np.frombuffer(data[slot : slot + 4], layout.INDEX_SLOT)[0])
        good += number <= newest < count and 0 <= item["prev_index"] < number
        probed += 1
    return good * 2 > probed


def _check_chains(file: IndexPiece, after: IndexPiece | None, report: Report) -> None:
    """Check that every item is found by its hash, or exists again in this file or the next.

    A broker that is killed between two writes leaves an item unlinked and adds its key again.
    """
    report.count("index_items", file.count - 1)
    reached = np.zeros(file.count, np.uint8)
    used = kernels.mark_chains(file.data, file.slots, file.count, reached)
    unlinked = np.flatnonzero(reached[1:] == 0) + 1
    if unlinked.size:
        pairs = _pairs(file.items(1, file.count))
        linked = pairs[reached[1:] != 0]
        if after is not None:
            linked = np.concatenate([linked, _pairs(after.items(1, BLOCK_ITEMS))])
        unlinked = unlinked[~is_among(pairs[unlinked - 1], np.sort(linked))]
    if unlinked.size:
        first = int(unlinked[0])
        text = (
            f"{unlinked.size} items, the first is item {first}, cannot be found from their slots: "
            f"remove the index directory, DueMQ rebuilds it"
        )
        position = file.item_pos(first)
        report.add("error", "index-chain", file.path, position, text, count=int(unlinked.size))
    header = np.frombuffer(file.data[:HEADER_BYTES], layout.INDEX_HEADER)[0]
    if used != header["slot_count"]:
        text = f"its header counts {header['slot_count']} used slots, there are {used}"
        report.add("note", "index-slots", file.path, 32, text)


def _check_items(file: IndexPiece, summary: LogSummary, report: Report) -> None:
    scratch = np.zeros(1, layout.SCANNED)
    keys = np.zeros(index_kernels.KEYS_PER_RECORD_MAX, layout.KEYED)
    after_end = 0
    for first in range(1, file.count, BLOCK_ITEMS):
        items = file.items(first, BLOCK_ITEMS)
        codes = np.full(items.size, kernels.ELSEWHERE, np.uint8)
        phys = items["phys_offset"]
        for log_piece in overlapping(summary.pieces, int(phys.min()), int(phys.max())):
            span = summary.span(log_piece)
            kernels.check_items(items, log_piece.data, span, scratch, keys, codes)
        expired, late = (phys >= 0) & (phys < summary.min), phys >= summary.end
        after_end += int(late.sum())
        report.count("index_items_expired", int(expired.sum()))
        wrong = (codes != kernels.GOOD) & ~expired & ~late
        replaced = wrong & summary.is_replaced(phys)
        report.count("index_items_of_damage", int(replaced.sum()))
        for index in np.flatnonzero(wrong & ~replaced).tolist():
            code = int(codes[index])
            reason = FAULTS[code].format(phys=int(phys[index]))
            kind = KINDS.get(code, "item-record")
            position = file.item_pos(first + index)
            report.add("error", kind, file.path, position, f"index item {first + index}: {reason}")
    report.count("index_items_behind_log", after_end)
    if after_end:
        text = f"{after_end} items point after the log's end, {summary.end}; queries skip them"
        report.add("warning", "item-behind-log", file.path, 0, text, count=after_end)


class _Keys:
    """Check of the keys from the index's first to its last record: each must have an item."""

    def __init__(self, files: list[IndexPiece], summary: LogSummary, report: Report) -> None:
        self.summary, self.report = summary, report
        self.pieces = [file for file in files if file.count > 1]
        self.items = self._blocks()
        self.ahead: Rows = np.zeros(0, np.int64)  # (offset, hash) of items not compared yet
        self.reach = -1  # all items up to this log offset have been read
        self.missing: list[int] = [0, 0, 0]  # current run: keys, first and last log offset

    def check(self) -> None:
        if not self.pieces:
            return
        low = int(self.pieces[0].items(1, 1)["phys_offset"][0])
        last = self.pieces[-1]
        high = int(last.items(last.count - 1, 1)["phys_offset"][0])
        for file in overlapping(self.summary.pieces, low, high):
            for keys in self._log_keys(file, max(low, file.base)):
                self._compare(keys[keys["phys_offset"] < high])
        self._report()

    def _blocks(self) -> Iterator[Rows]:
        for file in self.pieces:
            for first in range(1, file.count, BLOCK_ITEMS):
                yield file.items(first, BLOCK_ITEMS)

    def _log_keys(self, file: Piece, start: int) -> Iterator[Rows]:
        """Yield blocks of keys of the records in a log file, in log order."""
        out = np.zeros(BLOCK_ITEMS, layout.KEYED)
        scratch = np.zeros(1, layout.SCANNED)
        base, end = self.summary.span(file)

        def read_chunk(position: int) -> Chunk:
            return index_kernels.collect_keys(
                file.data, position, end - base, base + position, scratch, out
            )

        pos = max(start - base, 0)
        for count in read_past_damage(file.data, base, pos, end - base, read_chunk):
            yield out[:count]

    def _compare(self, keys: Rows) -> None:
        if not keys.size:
            return
        last = int(keys["phys_offset"][-1])
        while self.reach <= last:  # a file may end between two keys of a record
            block = next(self.items, None)
            if block is None:
                break
            self.ahead = np.concatenate([self.ahead, _pairs(block)])
            self.reach = int(block["phys_offset"].max())
        is_indexed = is_among(_pairs(keys), np.sort(self.ahead))
        edges = np.flatnonzero(np.diff(is_indexed)) + 1
        for run in np.split(np.arange(is_indexed.size), edges):
            if is_indexed[run[0]]:
                self._report()
            else:
                first = self.missing[1] if self.missing[0] else int(keys["phys_offset"][run[0]])
                last = int(keys["phys_offset"][run[-1]])
                self.missing = [self.missing[0] + int(run.size), first, last]
        self.ahead = self.ahead[-2 * BLOCK_ITEMS :]

    def _report(self) -> None:
        """Report the run of missing keys that has ended, if any."""
        (count, first, last), self.missing = self.missing, [0, 0, 0]
        file = pieces_of(self.summary.pieces, first)
        if not count or file is None:
            return
        self.report.count("keys_missing", count)
        text = (
            f"{count} keys of records at log offsets {first} to {last} are not in the index: "
            f"queries by key miss them (Apache leaves such holes after a crash). Remove the "
            f"index directory: DueMQ rebuilds it from the log"
        )
        self.report.add("warning", "key-missing", file.path, first - file.base, text, count=count)


def _pairs(keys: Rows) -> npt.NDArray[np.int64]:
    """Return a number for each pair of log offset and hash."""
    mixed = keys["phys_offset"].astype(np.int64) * 1_000_003
    return np.asarray(mixed ^ (keys["key_hash"].astype(np.int64) << 20))
