"""A store with known faults: a timer store's own work, and what somebody did to its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from message_store import layout
from message_store.batch import PutBatch
from message_store.properties import encode_properties
from message_store.quarantine import origin_of
from tests.store_help import LOOPBACK
from tests.timer_store.rig import TimerRig
from timer_store.names import TIMER_TOPIC

HOUR_MS = 3_600_000
FILE_BYTES = 65_536
HEAD = {name: layout.RECORD_HEAD.fields[name][1] for name in layout.RECORD_HEAD.names or ()}  # type: ignore[index]


@dataclass
class Planted:
    """What an audit must find.

    Attributes:
        verdicts: by log offset of the first record of each message.
        gaps: log offsets of what is no record any more.
    """

    root: Path
    verdicts: dict[int, str] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)


def plant(root: Path, each: int = 2) -> Planted:
    """Make a store in which every verdict occurs `each` times."""
    made = _Planting(root, each)
    made.outage()
    made.work()
    made.append()
    made.rig.close()
    made.surgery()
    return made.planted


class _Planting:
    def __init__(self, root: Path, each: int) -> None:
        self.planted, self.each = Planted(root), each
        self.rig = TimerRig(root).open()
        self.at: dict[str, list[int]] = {}

    def hold(self, kind: str, delay_ms: int, verdict: str = "", **more: Any) -> list[int]:
        """Put timers; note what is to be said of them."""
        due_ms = self.rig.clock.now_ms() + delay_ms
        rows = [
            self.rig.put(due_ms, body=f"{kind}/{n}".encode(), UNIQ_KEY=f"{kind}-{n}", **more)
            for n in range(self.each)
        ]
        offsets = [int(batch.rows[0]["phys_offset"]) for batch in rows]
        self.planted.verdicts |= dict.fromkeys(offsets, verdict or kind)
        self.at[kind] = offsets
        return offsets

    def outage(self) -> None:
        """Have timers fall due while nobody runs."""
        self.hold("late", 1_500)
        self.rig.close()
        self.rig.clock.set_ms(self.rig.clock.now_ms() + HOUR_MS)
        self.rig.open()

    def work(self) -> None:
        """Deliver, cancel and move as the timer store does it."""
        for kind in ("ok", "lost", "duplicated", "early", "misrouted"):
            self.hold(kind, 1_700)
        self.hold("properties", 1_800, "corrupt")
        self.hold("body", 1_900, "corrupt")
        self.hold("gone", 1_500, "quarantined", topic="Nowhere")
        self.hold("pending", HOUR_MS)
        self.hold("unreadable", HOUR_MS, "corrupt")
        self.hold("moved_twice", HOUR_MS)
        moved = self.hold("moved", 60_000)
        fired = self.hold("fired", 80_000, "moved")
        cancelled = self.hold("cancelled", 70_000) + self.hold("cancelled_but_fired", 70_000)
        self.rig.work()
        decisions = self.rig.timers.decisions
        now_ms = self.rig.clock.now_ms()
        decisions.move(np.array(moved), np.array([now_ms + 2_500] * self.each))
        decisions.fire(np.array(fired))
        decisions.cancel(np.array(cancelled))
        copied = self.at["moved_twice"]
        decisions.move(np.array(copied), np.array([now_ms + 2 * HOUR_MS] * self.each))
        self.rig.advance(90_000)

    def append(self) -> None:
        """Append records that nobody should have written."""
        for origin in self.at["duplicated"] + self.at["cancelled_but_fired"]:
            self.copy(origin, "T")
        for origin in self.at["moved_twice"]:
            self.copy(origin, TIMER_TOPIC)
        for n in range(self.each):
            offset = self.put("T", b"plain", {"UNIQ_KEY": f"plain-{n}"}, 0)
            self.put("T", b"unexpected", {}, origin_of(offset))
            self.planted.verdicts[offset] = "unexpected"

    def copy(self, origin: int, topic: str) -> None:
        """Append a record made of the timer at `origin`."""
        record = self.rig.store.read_record(origin)
        self.put(topic, record.body, record.properties, origin_of(origin))

    def put(self, topic: str, body: bytes, properties: dict[str, str], origin: int) -> int:
        store, batch = self.rig.store, PutBatch(1)
        batch.add(
            topic_index=store.topics.add(topic), queue_id=0, body=body,
            properties=encode_properties(properties), born_ms=self.rig.clock.now_ms(),
            born_host=LOOPBACK, store_host=LOOPBACK, prepared_offset=origin,
        )  # fmt: skip
        batch.trusted = True
        store.put(batch)
        assert batch.rows[0]["status"] == 0
        return int(batch.rows[0]["phys_offset"])

    def surgery(self) -> None:
        """Change bytes of the log."""
        log = _Log(self.planted.root)
        sent = log.deliveries()
        for origin in self.at["lost"]:
            log.set_number(sent[origin], "sys_flag", layout.SYS_ROLLBACK)
        for origin in self.at["early"]:
            log.set_number(sent[origin], "store_ms", log.number(sent[origin], "store_ms") - 1_000)
        for origin in self.at["misrouted"]:
            log.set_number(sent[origin], "queue_id", 3)
        for origin in self.at["body"]:
            log.flip(sent[origin] + layout.RECORD_HEAD.itemsize)
        for origin in self.at["properties"]:
            log.flip(log.find(b"UNIQ_KEY\x01", sent[origin]) + 12)
        for offset in self.at["unreadable"]:
            log.set_number(offset, "magic", 0)
        self.planted.gaps = self.at["unreadable"][:1]  # neighbours: one gap


class _Log:
    """The bytes of a log on the disk."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "commitlog"
        self.packers = {n: layout.packer(np.dtype([(n, layout.RECORD_HEAD[n])])) for n in HEAD}

    def _edit(self, at: int, data: bytes) -> None:
        with (self.folder / f"{at // FILE_BYTES * FILE_BYTES:020d}").open("r+b") as file:
            file.seek(at % FILE_BYTES)
            file.write(data)

    def _bytes(self, at: int, size: int) -> bytes:
        data = (self.folder / f"{at // FILE_BYTES * FILE_BYTES:020d}").read_bytes()
        return data[at % FILE_BYTES : at % FILE_BYTES + size]

    def number(self, record: int, name: str) -> int:
        packed = self.packers[name]
        return int(packed.unpack(self._bytes(record + HEAD[name], packed.size))[0])

    def set_number(self, record: int, name: str, value: int) -> None:
        self._edit(record + HEAD[name], self.packers[name].pack(value))

    def flip(self, at: int) -> None:
        self._edit(at, bytes([self._bytes(at, 1)[0] ^ 1]))

    def find(self, text: bytes, start: int) -> int:
        """Return where a text stands behind `start`."""
        return start + self._bytes(start, FILE_BYTES).index(text)

    def deliveries(self) -> dict[int, int]:
        """Return the log offset of the first delivery of each origin."""
        found: dict[int, int] = {}
        at, end = 0, len(list(self.folder.iterdir())) * FILE_BYTES
        while at < end:
            size = self.number(at, "total_size")
            if size <= 0 or self.number(at, "magic") == layout.MAGIC_BLANK:
                at = (at // FILE_BYTES + 1) * FILE_BYTES
                continue
            origin = -self.number(at, "prepared_offset") - 1
            is_timer = TIMER_TOPIC.encode() in self._bytes(at, size)
            if origin >= 0 and not is_timer:
                found.setdefault(origin, at)
            at += size
        return found
