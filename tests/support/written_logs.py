"""Writer of commit logs, including records whose bodies contain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from message_store import layout
from message_store.log.properties import encode_properties
from tests.support.encoded_records import encode_record

FILE_BYTES = 16_384
HOST = (b"\x7f\x00\x00\x01", 10911)
START_MS = 1_700_000_000_000
BLANK = layout.packer(layout.BLANK_RECORD)


def record_at(offset: int, body: bytes, *, topic: str = "T", number: int = 0, **more: str) -> bytes:
    """Return the bytes of a record with the log offset `offset`."""
    return encode_record(
        topic=topic,
        queue_id=0,
        body=body,
        property_text=encode_properties(more),
        queue_offset=number,
        phys_offset=offset,
        born_ms=START_MS,
        born_host=HOST,
        store_ms=START_MS + number,
        store_host=HOST,
    )


@dataclass
class LogWriter:
    """Writer of commit log files below `root`.

    Attributes:
        places: (offset, size) of each record, in bytes.
    """

    root: Path
    file_bytes: int = FILE_BYTES
    places: list[tuple[int, int]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    def add(self, body: bytes, *, plant: int = 0, **more: str) -> int:
        """Append a record whose body ends with `plant` embedded records with matching offsets."""
        position = len(self.data)
        made = self._made(position, body, plant, more)
        left = self.file_bytes - position % self.file_bytes
        if len(made) + 8 > left:
            self.data += BLANK.pack(left, layout.MAGIC_BLANK).ljust(left, b"\0")
            position += left
            made = self._made(position, body, plant, more)
        self.data += made
        self.places.append((position, len(made)))
        return position

    def _made(self, position: int, body: bytes, plant: int, more: dict[str, str]) -> bytes:
        for _ in range(plant):
            body += record_at(position + 88 + len(body), b"planted", topic="Planted")
        return record_at(position, body, number=len(self.places), **more)

    def write(self) -> Path:
        """Write the files; return the store's root."""
        folder = self.root / "commitlog"
        folder.mkdir(parents=True, exist_ok=True)
        for base in range(0, len(self.data), self.file_bytes):
            part = bytes(self.data[base : base + self.file_bytes])
            (folder / f"{base:020d}").write_bytes(part.ljust(self.file_bytes, b"\0"))
        return self.root
