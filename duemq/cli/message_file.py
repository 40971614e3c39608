"""Files of messages to send: exports of pending messages, and repairs of lost ones.

    {"format": "duemq-pending-1", ...}      first line of a JSON Lines file
    {"topic": ..., "unique_id": ..., ...}   a line for each message: `PendingLine`
    {"messages": 17, ...}                   last line: a file without it is incomplete

`duemq reconcile repair` writes `duemq-repair-1` with lines of its own form and without a last line.
A Parquet file has the columns of `PendingLine`; properties are a map.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import msgspec

from delayed_delivery.names import OCCURRENCE_NAMES, REPAIRED
from duemq.client.message import decompressed
from duemq_common.errors import UsageError
from message_store.log.properties import decode_properties, own_id

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from pyarrow.parquet import ParquetWriter

REPAIR_FORMAT: Final = "duemq-repair-1"
PENDING_FORMAT: Final = "duemq-pending-1"
BROKER_PROPERTIES: Final = frozenset(
    {
        "REAL_TOPIC",
        "REAL_QID",
        "DELAY",
        "DELAy",
        "TIMER_OUT_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_LABEL",
        "TIMER_ROLL_TIMES",
        "DUEMQ_DUE_MS",
        "__CRC32#",
        REPAIRED,
        *OCCURRENCE_NAMES,
    }
)
WRITERS: Final = "an output of `duemq reconcile repair` or `duemq timers export`"
END_START: Final = b'{"messages":'
MALFORMED: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    ImportError,
)
PARQUET_ROWS: Final = 65_536  # rows of a group
PARQUET_SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True)
class FileMessage:
    """Message of a file.

    Attributes:
        unique_id: Unique id; empty: none.
        properties: Properties of the client.
        phys_offset: Log offset of its record in the store that had it.
        due_ms: Due time in ms since the epoch; None: unknown.
        flag: Number of the application.
        is_lost: Whether it was lost: its former record may still be in the target's store.
        stored_body: Body of that record, perhaps compressed.
    """

    topic: str
    unique_id: str
    body: bytes
    properties: dict[str, str]
    phys_offset: int
    queue_id: int
    due_ms: int | None
    flag: int = 0
    is_lost: bool = False
    stored_body: bytes = b""


class PendingLine(msgspec.Struct, gc=False):
    """Line of an export.

    Attributes:
        body: Decompressed body, in base64.
        store_ms: Time at which the message was stored in ms since the epoch.
        phys_offset: Log offset of its record.
    """

    topic: str
    queue_id: int
    unique_id: str
    due_ms: int
    properties: dict[str, str]
    body: bytes
    flag: int = 0
    store_ms: int = 0
    phys_offset: int = -1

    def message(self) -> FileMessage:
        """Return the message to send."""
        if not self.topic or not self.unique_id:
            raise ValueError("topic or unique_id is empty")
        return FileMessage(
            self.topic,
            self.unique_id,
            self.body,
            {k: v for k, v in self.properties.items() if k not in BROKER_PROPERTIES},
            self.phys_offset,
            self.queue_id,
            self.due_ms,
            self.flag,
        )


class LostLine(msgspec.Struct):
    """Line of a repair."""

    topic: str
    unique_id: str | None
    property_text: bytes
    body: bytes
    phys_offset: int
    queue_id: int | None
    due_ms: int | None
    flag: int = 0
    sys_flag: int = 0

    def message(self) -> FileMessage:
        """Return the message to send."""
        properties = decode_properties(self.property_text)
        return FileMessage(
            self.topic,
            (own_id(self.property_text) or self.unique_id) if self.unique_id else "",
            decompressed(self.body, self.sys_flag),
            {k: v for k, v in properties.items() if k not in BROKER_PROPERTIES},
            self.phys_offset,
            self.queue_id or 0,
            self.due_ms,
            self.flag,
            is_lost=True,
            stored_body=self.body,
        )


# -- read -----------------------------------------------------------------------------------------


def read_file(path: Path) -> Iterator[FileMessage]:
    """Yield the messages of a file.

    Raises:
        UsageError: The file is unreadable, malformed or incomplete; the text has the line number.
            Messages before that line have been returned.
    """
    if path.suffix == PARQUET_SUFFIX:
        yield from _read_parquet(path)
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        first = file.readline()
        if not first:
            raise UsageError(f"{path} is empty: not {WRITERS}")
        try:
            format_name = msgspec.json.decode(first)["format"]
            if format_name not in (REPAIR_FORMAT, PENDING_FORMAT):
                raise ValueError(f"its format is {format_name}")
        except MALFORMED as error:
            raise UsageError(f"{path}:1: not {WRITERS} ({error})") from error
        yield from _read_lines(path, file, is_repair=format_name == REPAIR_FORMAT)


def _read_lines(path: Path, file: BinaryIO, *, is_repair: bool) -> Iterator[FileMessage]:
    kind: type[LostLine | PendingLine] = LostLine if is_repair else PendingLine
    decoder = msgspec.json.Decoder(kind)
    count, number = 0, 1
    for number, line in enumerate(file, 2):
        try:
            if line.startswith(END_START) and not is_repair:
                if msgspec.json.decode(line)["messages"] != count:
                    raise ValueError(f"the file has {count} messages: {line.decode()}")
                return
            message = decoder.decode(line).message()
        except MALFORMED as error:
            raise UsageError(f"{path}:{number}: not {WRITERS} ({error})") from error
        count += 1
        yield message
    if not is_repair:
        raise UsageError(
            f"{path}:{number}: the file is incomplete, it ends after {count} messages. Export again"
        )


def _read_parquet(path: Path) -> Iterator[FileMessage]:
    arrow, parquet = _arrow()
    try:
        file = parquet.ParquetFile(path)
        if (file.schema_arrow.metadata or {}).get(b"format") != PENDING_FORMAT.encode():
            raise UsageError(f"{path} is not an export of `duemq timers export`")
        for batch in file.iter_batches(PARQUET_ROWS):
            for row in batch.to_pylist():
                row["properties"] = dict(row["properties"])
                yield msgspec.convert(row, PendingLine).message()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except (arrow.ArrowException, *MALFORMED) as error:
        raise UsageError(f"{path} is not a complete export in Parquet: {error}") from error


def _arrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'duemq[spark]'") from error
    return arrow, parquet


# -- write ----------------------------------------------------------------------------------------


class MessageFileWriter:
    """Writer of an export, a context manager. The file has its name when it is complete.

    Args:
        path: New file; a name that ends in .parquet selects Parquet.
        head: Facts for the first line.
    Raises (on entering):
        UsageError: The file exists or cannot be created, or pyarrow is missing.
    """

    def __init__(self, path: Path, head: Mapping[str, object]) -> None:
        self._path, self._head = path, {"format": PENDING_FORMAT, **head}
        self._partial = path.with_name(f"{path.name}.partial")
        self.count = 0
        self._encode = msgspec.json.Encoder().encode_lines
        self._parquet: ParquetWriter | None = None
        self._arrow: ModuleType | None = None
        self._rows: list[PendingLine] = []

    def __enter__(self) -> Self:
        if os.path.lexists(self._path):
            raise UsageError(f"{self._path} exists: name a new file")
        if self._path.suffix == PARQUET_SUFFIX:
            arrow, parquet = _arrow()
            self._arrow, schema = arrow, _schema(arrow)
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise UsageError(f"{self._partial} cannot be written: {error.strerror}") from error
        if self._arrow is not None:
            self._parquet = parquet.ParquetWriter(self._file, schema, compression="zstd")
        else:
            self._file.write(msgspec.json.encode(self._head) + b"\n")
        return self

    def write(self, lines: Sequence[PendingLine]) -> None:
        """Add messages."""
        self.count += len(lines)
        if self._parquet is None:
            self._file.write(self._encode(lines))
            return
        self._rows += lines
        if len(self._rows) >= PARQUET_ROWS:
            self._write_rows()

    def _write_rows(self) -> None:
        assert self._arrow is not None
        assert self._parquet is not None
        rows, self._rows = self._rows, []
        self._parquet.write_table(_table(self._arrow, rows))

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is None and self._parquet is not None:
                self._write_rows()
            if self._parquet is not None:
                self._parquet.close()
            elif kind is None:
                self._file.write(msgspec.json.encode({"messages": self.count}) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
        if kind is None:
            self._partial.rename(self._path)


def _table(arrow: ModuleType, lines: Sequence[PendingLine]) -> Table:
    schema, arrays = _schema(arrow), []
    for field in schema:
        column = [getattr(line, field.name) for line in lines]
        if field.name == "properties":  # an array of pairs takes ten times as long
            names = arrow.array([name for pairs in column for name in pairs], arrow.string())
            values = arrow.array(
                [value for pairs in column for value in pairs.values()], arrow.string()
            )
            ends = arrow.array([*accumulate(map(len, column), initial=0)], arrow.int32())
            arrays.append(arrow.MapArray.from_arrays(ends, names, values))
        else:
            arrays.append(arrow.array(column, field.type))
    return arrow.Table.from_arrays(arrays, schema=schema)


def _schema(arrow: ModuleType) -> Schema:
    return arrow.schema(
        [
            ("topic", arrow.string()),
            ("queue_id", arrow.int32()),
            ("unique_id", arrow.string()),
            ("due_ms", arrow.int64()),
            ("properties", arrow.map_(arrow.string(), arrow.string())),
            ("body", arrow.binary()),
            ("flag", arrow.int32()),
            ("store_ms", arrow.int64()),
            ("phys_offset", arrow.int64()),
        ],
        metadata={"format": PENDING_FORMAT},
    )
