"""Independent reader and writer of store directories, by the formats of RocketMQ alone.

Nothing here imports a package of the broker, so that a mistake in its layouts cannot hide itself.

    commitlog/<base>                    records; `Record` has the fields and their positions
    consumequeue/<topic>/<queue>/<base> units of 20 bytes: log offset, size, tags code
    timerlog/<base>                     units of 52 bytes
    config/*.json                       fastjson's dialect: number keys without quotes
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
HEAD: Final = struct.Struct(">IIIiiqqiq")  # size magic crc queue flag number offset sysflag born
CQ: Final = struct.Struct(">qiq")
TIMER: Final = struct.Struct(">iqiqiqiiq")  # size prev magic write delta offset size hash due
IPV6_BORN, IPV6_STORE = 16, 32
QUEUE_AT, FLAG_AT, NUMBER_AT, OFFSET_AT, SYS_AT, BORN_AT = 12, 16, 20, 28, 36, 40
SCHEDULE, TIMERS = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
Unit = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Record:
    """Fields of a record; names that end with `_at` are log offsets of fields.

    Attributes:
        host: Bytes of address and port of the producer.
        origin: Log offset of the record that this one names (DueMQ), None without one.
    """

    log_offset: int
    size: int
    crc: int
    queue: int
    flag: int
    number: int
    sys_flag: int
    born_ms: int
    host: bytes
    store_ms: int
    reconsumed: int
    prepared: int
    topic: str
    properties: dict[str, str]
    body: bytes
    store_ms_at: int
    reconsumed_at: int
    prepared_at: int
    body_at: int
    topic_at: int
    properties_at: int

    @property
    def origin(self) -> int | None:
        return -self.prepared - 1 if self.prepared < 0 else None


def parse(data: bytes, log_offset: int) -> Record:
    """Return the record at the start of `data`, whose log offset is `log_offset`.

    Raises:
        ValueError, struct.error, IndexError: There is no record.
    """
    size, magic, crc, queue, flag, number, offset, sys_flag, born_ms = HEAD.unpack_from(data)
    if magic not in (V1, V2) or offset != log_offset:
        raise ValueError(f"no record at {log_offset}")
    pos = HEAD.size + (20 if sys_flag & IPV6_BORN else 8)
    host, store_ms_at = data[HEAD.size : pos], pos
    (store_ms,) = struct.unpack_from(">q", data, pos)
    pos += 8 + (20 if sys_flag & IPV6_STORE else 8)
    reconsumed, prepared, body_size = struct.unpack_from(">iqi", data, pos)
    reconsumed_at, pos = pos, pos + 16
    body_at, pos = pos, pos + body_size
    (topic_size,) = struct.unpack_from(">B" if magic == V1 else ">h", data, pos)
    pos += 1 if magic == V1 else 2
    topic_at, pos = pos, pos + topic_size
    (properties_size,) = struct.unpack_from(">h", data, pos)
    pos += 2
    if pos + properties_size != size:
        raise ValueError(f"the lengths of the record at {log_offset} disagree")
    text = data[pos : pos + properties_size].decode("utf-8", "replace")
    pairs = (entry.partition("\x01") for entry in text.split("\x02"))
    return Record(
        log_offset,
        size,
        crc,
        queue,
        flag,
        number,
        sys_flag,
        born_ms,
        host,
        store_ms,
        reconsumed,
        prepared,
        data[topic_at : topic_at + topic_size].decode("utf-8", "replace"),
        {name: value for name, _, value in pairs if name and value},
        data[body_at : body_at + body_size],
        log_offset + store_ms_at,
        log_offset + reconsumed_at,
        log_offset + reconsumed_at + 4,
        log_offset + body_at,
        log_offset + topic_at,
        log_offset + pos,
    )


def java_hash(text: str) -> int:
    """Return String.hashCode of a text, as a signed number of 32 bits."""
    value = 0
    units = text.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", units):
        value = (value * 31 + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


class FileRow:
    """Files of equal size, named by the position of their first byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        named = (path for path in self.folder.iterdir() if re.fullmatch(r"\d{20}", path.name))
        return sorted(path for path in named if path.stat().st_size)

    def file_at(self, position: int) -> Path:
        """Return the file with a position."""
        return self._place(position)[0]

    def _place(self, position: int) -> tuple[Path, int]:
        for path in reversed(self.files()):
            base = int(path.name)
            if base <= position < base + path.stat().st_size:
                return path, position - base
        raise KeyError(position)

    def split(self, size: int) -> None:
        """Divide the files into files of a size."""
        for path in self.files():
            data = path.read_bytes()
            path.unlink()
            for pos in range(0, len(data), size):
                path.with_name(f"{int(path.name) + pos:020d}").write_bytes(data[pos : pos + size])

    def read(self, position: int, size: int) -> bytes:
        path, pos = self._place(position)
        with path.open("rb") as file:
            file.seek(pos)
            return file.read(size)

    def write(self, position: int, data: bytes) -> None:
        """Overwrite bytes; adds a file if they begin right after the last one."""
        try:
            path, pos = self._place(position)
        except KeyError:
            last = self.files()[-1]
            path, pos = last.with_name(f"{int(last.name) + last.stat().st_size:020d}"), 0
            path.write_bytes(bytes(last.stat().st_size))
        with path.open("r+b") as file:
            file.seek(pos)
            file.write(data)


class PlainStore:
    """A store directory of a stopped broker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = FileRow(root / "commitlog")

    # -- reading ----------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """Return all records in order; bytes that are not a record end their file."""
        records = []
        for path in self.log.files():
            data, base, pos = path.read_bytes(), int(path.name), 0
            while pos + 8 <= len(data):
                size, magic = struct.unpack_from(">II", data, pos)
                if magic == BLANK or magic not in (V1, V2):
                    break
                records.append(parse(data[pos : pos + size], base + pos))
                pos += size
        return records

    def record(self, log_offset: int) -> Record:
        (size,) = struct.unpack(">I", self.log.read(log_offset, 4))
        return parse(self.log.read(log_offset, size), log_offset)

    def queues(self) -> list[tuple[str, int]]:
        """Return topic and number of every queue."""
        folders = (self.root / "consumequeue").glob("*/*")
        return sorted((path.parent.name, int(path.name)) for path in folders)

    def queue(self, topic: str, queue: int) -> FileRow:
        return FileRow(self.root / "consumequeue" / topic / str(queue))

    def units(self, topic: str, queue: int) -> dict[int, Unit]:
        """Return the units of a queue by number, up to the first empty one."""
        units: dict[int, Unit] = {}
        for path in self.queue(topic, queue).files():
            for n, unit in enumerate(CQ.iter_unpack(path.read_bytes())):
                if unit[1] <= 0:
                    return units
                units[int(path.name) // CQ.size + n] = unit
        return units

    def timer_units(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield position and fields of the units of the timer log."""
        for path in FileRow(self.root / "timerlog").files():
            data = path.read_bytes()
            for pos in range(0, len(data) - TIMER.size + 1, TIMER.size):
                unit = TIMER.unpack_from(data, pos)
                if unit[0] != TIMER.size:
                    break
                yield int(path.name) + pos, unit

    def json(self, name: str) -> Any:
        text = (self.root / "config" / name).read_text()
        return json.loads(re.sub(r"([{,]\s*)(-?\d+)\s*:", r'\1"\2":', text))

    # -- writing ----------------------------------------------------------------------------------

    def write_json(self, name: str, value: Any) -> None:
        """Overwrite a file of config/, and remove its backup."""
        (self.root / "config" / name).write_text(json.dumps(value))
        (self.root / "config" / f"{name}.bak").unlink(missing_ok=True)

    def put(self, log_offset: int, form: str, *values: Any) -> None:
        """Write packed values at a log offset."""
        self.log.write(log_offset, struct.pack(form, *values))

    def put_unit(self, topic: str, queue: int, number: int, unit: Unit) -> None:
        self.queue(topic, queue).write(number * CQ.size, CQ.pack(*unit))

    def fix_crc(self, log_offset: int) -> None:
        """Set the CRC of a record to that of its body."""
        self.put(log_offset + 8, ">I", zlib.crc32(self.record(log_offset).body) & 0x7FFF_FFFF)

    def end(self) -> int:
        """Return the log offset after the last record."""
        last = self.records()[-1]
        return last.log_offset + last.size

    def append(self, raw: bytes, queue: int, store_ms: int, prepared: int | None = None) -> int:
        """Append a copy of a record and its unit; return its log offset."""
        end, last = self.end(), self.log.files()[-1]
        file_size = last.stat().st_size
        room = file_size - end % file_size
        if len(raw) + 8 > room:
            self.put(end, ">II", room, BLANK)
            end += room
        (own,) = struct.unpack_from(">q", raw, OFFSET_AT)
        old = parse(raw, own)
        number = len(self.units(old.topic, queue))
        self.log.write(end, raw)
        self.put(end + QUEUE_AT, ">i", queue)
        self.put(end + NUMBER_AT, ">qq", number, end)
        self.put(end + old.store_ms_at - own, ">q", store_ms)
        if prepared is not None:
            self.put(end + old.prepared_at - own, ">q", prepared)
        code = java_hash(old.properties.get("TAGS", ""))
        self.put_unit(old.topic, queue, number, (end, len(raw), code))
        return end


@dataclass
class Scene:
    """A store to be changed.

    Attributes:
        sent: Pending records with their only deliveries, not used by a fault yet.
        waiting: Pending records without a delivery, by topic.
        queued: Topics with queues of ordinary messages.
    """

    store: PlainStore
    sent: list[tuple[Record, Record]]
    waiting: dict[str, list[Record]]
    queued: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of_store(cls, root: Path) -> Scene:
        """Pair the records of a store: by origin (DueMQ), or by unique id (Apache)."""
        store = PlainStore(root)
        records = store.records()
        held = [r for r in records if r.topic in (SCHEDULE, TIMERS)]
        others = [r for r in records if r.topic not in (SCHEDULE, TIMERS)]
        by_origin = {r.origin: r for r in others if r.origin is not None}
        by_name: dict[str, list[Record]] = {}
        for record in others:
            by_name.setdefault(record.properties.get("UNIQ_KEY", ""), []).append(record)
        cancelled = {
            r.properties.get("UNIQ_KEY") for r in held if "TIMER_DEL_UNIQKEY" in r.properties
        }
        scene = cls(store, [], {SCHEDULE: [], TIMERS: []})
        for record in held:
            name = record.properties.get("UNIQ_KEY", "")
            if "TIMER_DEL_UNIQKEY" in record.properties or name in cancelled:
                continue
            named = by_name.get(name, [])
            one = by_origin.get(record.log_offset) or (named[0] if len(named) == 1 else None)
            if one is not None and one.log_offset > record.log_offset:
                scene.sent.append((record, one))
            elif not named:
                scene.waiting[record.topic].append(record)
        scene.queued = [key for key in store.queues() if key[0] not in (SCHEDULE, TIMERS)]
        return scene

    def take(self) -> tuple[Record, Record]:
        return self.sent.pop(0)

    def wait(self, topic: str) -> Record:
        """Return a pending record that is not the first of its queue."""
        index = next(n for n, record in enumerate(self.waiting[topic]) if record.number > 0)
        return self.waiting[topic].pop(index)

    def unit(self, record: Record) -> tuple[int, int, int]:
        return self.store.units(record.topic, record.queue)[record.number]


def copy_sparse(source: Path, target: Path) -> Path:
    """Copy a store, whose large wheel stays a sparse file."""
    subprocess.run(["cp", "-r", "--sparse=always", str(source), str(target)], check=True)
    return target
