"""Commit logs of scheduled messages, written record by record, with any origins and times."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from message_store import layout
from message_store.log.properties import encode_properties
from tests.support.encoded_records import encode_record

FILE_BYTES = 2_048
HOST = (b"\x7f\x00\x00\x01", 10911)
START_MS = 1_700_000_000_000
BLANK = layout.packer(layout.BLANK_RECORD)


@dataclass(frozen=True)
class WrittenRecord:
    """A record of the log, as the naive exporter reads it."""

    offset: int
    end: int
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    prepared_offset: int
    body: bytes
    properties: dict[str, str]


@dataclass
class ScheduledLog:
    """Log in memory; `write` writes a part of it as the files of a store."""

    data: bytearray = field(default_factory=bytearray)
    records: list[WrittenRecord] = field(default_factory=list)
    counts: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(
        self,
        topic: str,
        store_ms: int,
        properties: dict[str, str],
        *,
        origin: int | None = None,
        queue_id: int = 0,
        body: bytes = b"body",
    ) -> int:
        """Append a record; return its log offset."""
        number = self.counts.get((topic, queue_id), 0)
        self.counts[topic, queue_id] = number + 1
        prepared = 0 if origin is None else -origin - 1

        def made(offset: int) -> bytes:
            return encode_record(
                topic=topic,
                queue_id=queue_id,
                body=body,
                property_text=encode_properties(properties),
                queue_offset=number,
                phys_offset=offset,
                born_ms=START_MS,
                born_host=HOST,
                store_ms=store_ms,
                store_host=HOST,
                prepared_offset=prepared,
            )

        size, left = len(made(0)), FILE_BYTES - len(self.data) % FILE_BYTES
        if size + 8 > left:
            self.data += BLANK.pack(left, layout.MAGIC_BLANK).ljust(left, b"\0")
        offset = len(self.data)
        self.data += made(offset)
        self.records.append(
            WrittenRecord(
                offset,
                len(self.data),
                topic,
                queue_id,
                number,
                store_ms,
                prepared,
                body,
                dict(properties),
            )
        )
        return offset

    def write(self, root: Path, *, end: int | None = None, first: int = 0) -> Path:
        """Write the log up to an offset, without the files before `first`; return the root."""
        folder = root / "commitlog"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        data = bytes(self.data[:end])
        for base in range(0, max(len(data), 1), FILE_BYTES):
            if base + FILE_BYTES > first:
                part = data[base : base + FILE_BYTES].ljust(FILE_BYTES, b"\0")
                (folder / f"{base:020d}").write_bytes(part)
        return root
