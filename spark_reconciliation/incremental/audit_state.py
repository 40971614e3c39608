"""State of the audits of one store: what is counted, and what has to be read again.

    DIR/state.json              written last, atomically; names the other files with their checksums
    DIR/pending-3.parquet       see `closed_messages`
    DIR/delivered-1.parquet     of an earlier audit: none of its messages has changed
    DIR/delivered-3.parquet
    DIR/records-3.parquet
    DIR/lock

Files never change. A killed audit leaves the former `state.json` and its files.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from duemq_common.directories import replace_file
from duemq_common.errors import UsageError
from duemq_common.existence import exists, is_directory
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.scan.record_mark import RecordMark
from spark_reconciliation.scan.store_part import KnownQueue

FORMAT: Final = "duemq-audit"
VERSION: Final = 3
"""Version of the state; a new one whenever rules of the audit or files of the state change."""
STATE_FILE: Final = "state.json"
TABLES: Final = ("pending", "delivered", "records")
"""Kinds of the other files, see `closed_messages`."""
CHUNK_BYTES: Final = 1 << 24


class FullAuditNeeded(Exception):
    """The state cannot be used; the text is the reason."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Settings of an audit on which the counted messages depend."""

    late_ms: int
    levels_ms: tuple[int, ...]
    trust_clock: bool

    @classmethod
    def of(cls, config: AuditConfig) -> AuditSettings:
        """Return those of a configuration."""
        return cls(config.late_ms, tuple(config.levels_ms), config.trust_clock)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """One of the other files.

    Attributes:
        crc: CRC-32 of its bytes.
        rows: Number of messages, or records.
        lowest: Lowest log offset of a record of delivered messages; 0: unknown.
        late_ms: Numbers of delivered messages by lateness.
    """

    crc: int
    rows: int = 0
    lowest: int = 0
    late_ms: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditState:
    """State after an audit.

    Attributes:
        number: Number of the audit, part of the names of its files.
        store: Path of the store.
        refusal: Reason why the next audit must be a full one; empty: it need not be.
        log_min, end: Log offsets between which the log was read.
        last: Last record before `end`.
        checked: Whether records were compared with the units of their queues.
        delays: Level to its possible delays, see `level_times`.
        queues: Queues as they were read.
        inspected: Log offsets of damage and clock steps.
        timer_pos: Position in the timer log before which units were compared with their records.
        read_ms: Slot that the timers had reached; None: unknown.
        files: The other files by name.
    """

    number: int
    store: str
    settings: AuditSettings
    refusal: str = ""
    log_min: int = 0
    end: int = 0
    last: RecordMark | None = None
    checked: bool = False
    delays: dict[int, tuple[int, ...]] = field(default_factory=dict)
    queues: tuple[KnownQueue, ...] = ()
    inspected: tuple[int, ...] = ()
    timer_pos: int = 0
    read_ms: int | None = None
    files: dict[str, SavedFile] = field(default_factory=dict)


class _StateHead(msgspec.Struct, frozen=True):
    """Fields of the file that are the same in all versions."""

    format: str = ""
    version: int = 0
    product: str = ""


class _SavedState(_StateHead, frozen=True):
    """Contents of the file.

    Attributes:
        crc: CRC-32 of `state`.
    """

    crc: int = 0
    state: msgspec.Raw = msgspec.Raw(b"")


def _head() -> _StateHead:
    return _StateHead(FORMAT, VERSION, version("duemq"))


def check_folder(folder: Path) -> None:
    """Check that a directory is new, or has the state of an audit.

    Raises:
        UsageError: It contains other files.
    """
    if not exists(folder):
        return
    if not is_directory(folder):
        raise UsageError(f"{folder} is a file: name a directory for the state")
    foreign = sorted(one.name for one in folder.iterdir() if not _is_own(one.name))
    if foreign:
        raise UsageError(
            f"{folder} is not the state of an audit: it contains {foreign[0]}; name a new directory"
        )


def next_number(folder: Path) -> int:
    """Return a number that no file of a state has."""
    numbers = (_number_of(path.name) for path in folder.iterdir())
    return max((number for number in numbers if number is not None), default=0) + 1


def read_state(folder: Path) -> AuditState:
    """Return the state in a directory, whose files are complete.

    Raises:
        UsageError: Its file is not one of an audit.
        FullAuditNeeded: There is no state, it is damaged, or of another version.
    """
    path = folder / STATE_FILE
    if not exists(path):
        raise FullAuditNeeded(f"there is no state in {folder}")
    try:
        data = path.read_bytes()
        head, expected = msgspec.json.decode(data, type=_StateHead), _head()
        if head.format != FORMAT:
            raise UsageError(f"{path} is not the state of an audit: name a new directory")
        if head != expected:
            raise FullAuditNeeded(
                f"the state is of DueMQ {head.product}, version {head.version}; this is "
                f"{expected.product}, version {expected.version}"
            )
        saved = msgspec.json.decode(data, type=_SavedState)
        if zlib.crc32(saved.state) != saved.crc:
            raise FullAuditNeeded(f"{path} is damaged")
        state = msgspec.json.decode(saved.state, type=AuditState)
    except msgspec.DecodeError as error:
        raise FullAuditNeeded(f"{path} is damaged: {error}") from error
    for name, file in state.files.items():
        if crc_of(folder / name) != file.crc:
            raise FullAuditNeeded(f"{folder / name} is missing or damaged")
    return state


def write_state(folder: Path, state: AuditState) -> None:
    """Write the state atomically, then remove the files of former ones.

    Raises:
        OSError: It cannot be written; the former one remains.
    """
    head, data = _head(), msgspec.json.encode(state)
    saved = _SavedState(
        head.format, head.version, head.product, zlib.crc32(data), msgspec.Raw(data)
    )
    replace_file(folder / STATE_FILE, msgspec.json.encode(saved))
    remove_files(folder, set(state.files))


def remove_files(folder: Path, kept: set[str]) -> None:
    """Remove the files of other audits."""
    for path in folder.iterdir():
        if _number_of(path.name) is not None and path.name not in kept:
            path.unlink()


def _is_own(name: str) -> bool:
    """Return whether a file may be one of a state."""
    return _number_of(name) is not None or name in ("lock", STATE_FILE, f"{STATE_FILE}.tmp")


def kind_of(name: str) -> str:
    """Return the kind of a file, one of TABLES, by its name."""
    return name.partition("-")[0]


def _number_of(name: str) -> int | None:
    """Return the number of the audit in the name of a file, None for other files."""
    kind, rest = kind_of(name), name.partition("-")[2]
    number = rest.removesuffix(".parquet")
    is_file = kind in TABLES and rest.endswith(".parquet") and number.isascii() and number.isdigit()
    return int(number) if is_file else None


def crc_of(path: Path) -> int | None:
    """Return the CRC-32 of a file, None if it is missing.

    Raises:
        OSError: It cannot be read.
    """
    if not exists(path):
        return None
    crc = 0
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            crc = zlib.crc32(data, crc)
    return crc
