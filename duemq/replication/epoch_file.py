"""Epochs of a log, and the file that stores them: `epochFileCheckpoint`.

An epoch is the term of one master. Its entry holds the log offset at which that master began to
write. Two logs are equal up to the end of the newest epoch that both have with the same start:

    replica  1 at 0      2 at 500     4 at 800  ... its log ends at 950
    master   1 at 0      2 at 500     5 at 700  ... its log ends at 2000
                                      ^ equal up to 700; the group never confirmed bytes 700 to 950

An epoch in which nothing was written keeps its entry, which has the start offset of the next one.

    3                          number of entries
    1725254278                 CRC-32 of the lines after this one, without the highest bit; 0: any
    1-0                        epoch-startOffset
    2-500
    4-800

Source: EpochFileCache, CheckpointFile, EpochEntrySerializer
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Self

from msgspec import Struct

from duemq_common.errors import CorruptStore
from duemq_common.existence import exists
from duemq_common.json_dialect import backup_path, write_config
from message_store.layout import CRC_MASK

log = logging.getLogger(__name__)
FILE_BYTES_MAX: Final = 1 << 20
ENTRIES_MAX: Final = 10_000
ENTRIES_KEPT: Final = 1_000  # maximum in the handshake of Apache's master
EPOCH_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1
NO_EPOCH: Final = -1  # EpochFileCache.lastEpoch of an empty list
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_LINE_END = re.compile(r"\r\n|\n|\r")
_ENTRY = re.compile(r"([0-9]{1,10})-([0-9]{1,19})", re.ASCII)


class EpochEntry(NamedTuple):
    """An epoch, and the log offset of the first byte that its master wrote."""

    epoch: int
    start_offset: int


class Epochs(Struct, frozen=True):
    """The epochs of a log, oldest first.

    Raises:
        ValueError: Entries out of order, or a number out of range.
    """

    entries: tuple[EpochEntry, ...] = ()

    def __post_init__(self) -> None:
        if len(self.entries) > ENTRIES_MAX:
            raise ValueError(f"{len(self.entries)} epochs; the limit is {ENTRIES_MAX}")
        before = EpochEntry(NO_EPOCH, 0)
        for entry in self.entries:
            if not 0 <= entry.epoch <= EPOCH_MAX or not 0 <= entry.start_offset <= OFFSET_MAX:
                raise ValueError(f"epoch {entry.epoch} at {entry.start_offset} is out of range")
            if entry.epoch <= before.epoch or entry.start_offset < before.start_offset:
                raise ValueError(
                    f"epoch {entry.epoch} at {entry.start_offset} follows epoch {before.epoch} "
                    f"at {before.start_offset}"
                )
            before = entry

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]]) -> Self:
        """Return the epochs of pairs (epoch, start offset), oldest first."""
        return cls(tuple(EpochEntry(*entry) for entry in entries))

    @property
    def last(self) -> EpochEntry | None:
        """The newest entry; None: no entries."""
        return self.entries[-1] if self.entries else None

    @property
    def last_epoch(self) -> int:
        """The newest epoch; `NO_EPOCH`: no entries."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def appended(self, epoch: int, start_offset: int) -> Epochs:
        """Return these epochs and a newer one; only the newest `ENTRIES_KEPT` entries remain."""
        kept = self.entries[-ENTRIES_KEPT + 1 :]
        return Epochs((*kept, EpochEntry(epoch, start_offset)))

    def begun(self, epoch: int, start_offset: int, log_begin: int) -> Epochs:
        """Return the epochs of a broker that becomes master of `epoch`.

        Args:
            epoch: The new master epoch.
            start_offset: End of the broker's log, where the new epoch starts.
            log_begin: First offset of the broker's log. The new epoch starts there if the log has
                no epochs: it then includes all that was written without epochs.
        Raises:
            ValueError: The log has a newer epoch.
        """
        if epoch < self.last_epoch:
            raise ValueError(f"epoch {epoch} is older than epoch {self.last_epoch} of the log")
        kept = Epochs(tuple(entry for entry in self.entries if entry.epoch < epoch))
        return kept.appended(epoch, start_offset if self.entries else log_begin)

    def before(self, offset: int) -> Epochs:
        """Return the epochs that start before `offset`, as of a log truncated to `offset`."""
        return Epochs(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def since(self, offset: int) -> Epochs:
        """Return the epochs that end after `offset`, as of a log that begins at `offset`."""
        ends = [entry.start_offset for entry in self.entries[1:]]
        first = sum(end <= offset for end in ends)
        return Epochs(self.entries[first:])

    def covering(self, offset: int) -> EpochEntry | None:
        """Return the epoch of the byte at `offset`; the first one if all start later."""
        epoch = self.entries[0] if self.entries else None
        for entry in self.entries:
            if entry.start_offset <= offset:
                epoch = entry
        return epoch

    def end_after(self, offset: int) -> int:
        """Return the end offset of the epoch of the byte at `offset`; `OFFSET_MAX`: the newest."""
        starts = (entry.start_offset for entry in self.entries)
        return next((start for start in starts if start > offset), OFFSET_MAX)

    def consistent_point(self, log_end: int, peer: Epochs, peer_end: int) -> int | None:
        """Return the offset up to which this log and a peer's are equal; None: no common epoch.

        Args:
            log_end: End of this log. Entries that start after it are ignored: their log bytes were
                never written, or were lost.
            peer: Epochs of the peer's log.
            peer_end: End of the peer's log; entries that start after it are ignored as well.
        """
        theirs = peer._ends(peer_end)
        for entry, end in reversed(self._ends(log_end).items()):
            if entry in theirs:
                return min(end, theirs[entry])
        return None

    def _ends(self, log_end: int) -> dict[EpochEntry, int]:
        """Return the end offset of each entry that starts at or before the log's end."""
        reached = [entry for entry in self.entries if entry.start_offset <= log_end]
        ends = [*(entry.start_offset for entry in reached), log_end]
        return dict(zip(reached, ends[1:], strict=True))

    def encode(self) -> str:
        """Return the text of the file."""
        lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in self.entries)
        return f"{len(self.entries)}\n{_crc(lines)}\n{lines}"

    @classmethod
    def decode(cls, text: str) -> Epochs:
        """Return the epochs in the text of a file; lines that are not entries are ignored.

        Raises:
            ValueError: The text is truncated, damaged, or of another format.
        """
        count, crc, *lines = [*_LINE_END.split(text), ""]
        while lines and not lines[-1]:
            lines.pop()
        if not _NUMBER.fullmatch(count) or not _NUMBER.fullmatch(crc):
            raise ValueError("its first two lines are not a count and a CRC")
        pairs = [(int(m[1]), int(m[2])) for m in map(_ENTRY.fullmatch, lines) if m]
        if len(pairs) != int(count):
            raise ValueError(f"it has {len(pairs)} of {count} entries")
        if int(crc) not in (0, _crc("".join(f"{line}\n" for line in lines))):
            raise ValueError("its lines do not match their CRC")
        return cls.of(pairs)


def _crc(lines: str) -> int:
    return zlib.crc32(lines.encode()) & CRC_MASK


def read_epochs(path: Path) -> Epochs:
    """Return the epochs of a file, or of its `.bak` if the file is missing or damaged.

    Returns no epochs if neither file exists. The `.bak` lacks the newest epoch: the log may then be
    truncated further than necessary and copied again, but no confirmed message is lost.

    Raises:
        CorruptStore: The file is damaged, and its `.bak` is damaged or missing.
        OSError: The files cannot be read.
    """
    failure: Exception | None = None
    for candidate in (path, backup_path(path)):
        if not exists(candidate):
            continue
        try:
            with candidate.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
            epochs = Epochs.decode(data.decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            failure = failure or error
            continue
        if failure is not None:
            log.warning("%s is damaged (%s); using its .bak", path, failure)
        return epochs
    if failure is None:
        return Epochs()
    if isinstance(failure, OSError):
        raise failure
    raise CorruptStore(
        path,
        0,
        f"the epochs of the log cannot be read: {failure}",
        "Restore this file from a copy, or empty this store: the broker then copies the master's "
        "log.",
    ) from failure


class EpochFile:
    """The epochs of a store, in memory and in their file.

    Attributes:
        epochs: Current epochs, as in the file.
    Raises (each method):
        OSError: The file cannot be written; `epochs` is unchanged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs = read_epochs(path)

    def append(self, epoch: int, start_offset: int) -> None:
        """Add an entry.

        Raises:
            ValueError: The epoch is not newer than the last one, or starts before it.
        """
        self.replace(self.epochs.appended(epoch, start_offset))

    def truncate_from(self, offset: int) -> None:
        """Remove the epochs that start at or after `offset`, to which the log is truncated."""
        self.replace(self.epochs.before(offset))

    def replace(self, epochs: Epochs) -> None:
        """Write these epochs to the file if they differ from the current ones.

        Without entries, removes the file and its `.bak`: Apache's broker cannot read a file
        without entries.
        """
        if epochs == self.epochs:
            return
        if epochs.entries:
            write_config(self.path, epochs.encode())
        else:
            backup_path(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
        self.epochs = epochs
