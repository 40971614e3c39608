"""Record golden stores and their manifest from Apache's broker of one version.

Usage: `python -m tests.interop.record_stores 5.5.0`. The files are written below `tests/golden`:
`stores/apache-5.5.0-clean.tar.gz` after an orderly stop with pending levels and timers,
`stores/apache-5.5.0-killed.tar.gz` of the same store after another start, more of both, `kill -9`,
and `manifests/apache-5.5.0.jsonl`: a line per message (`sent`, `recalled`), and per end of a round.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.interop.apache import Apache
from tests.interop.store_work import TOPIC, Ledger
from tests.interop.timer_work import TimerLedger
from tests.support.golden_stores import (
    GOLDEN,
    INDEX_ITEMS,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
)
from tests.support.wait_until import now_ms

HOUR_MS = 3_600_000
SOON_LEVEL, PENDING_LEVELS = 1, (8, 17)  # 1 s; 4 min, 1 h
KEYS = {
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ITEMS),
    "mappedFileSizeTimerLog": "2600",
    "maxMessageSize": "20000",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
}
Line = dict[str, object]


class Recording:
    """Messages sent to one broker in two rounds, as lines of a manifest."""

    def __init__(self, apache: Apache) -> None:
        self.apache = apache
        self.levels, self.timers = Ledger(), TimerLedger()
        self.ends: list[Line] = []

    def work(self, name: str) -> None:
        """Send messages of every kind; return when the first of each kind are delivered."""
        apache, levels, timers = self.apache, self.levels, self.timers
        levels.send(apache, f"{name}-plain", 60)
        levels.send(apache, f"{name}-soon", 8, level=SOON_LEVEL)
        timers.send(apache, f"{name}-timer", 8, delay_ms=1_500, kind="TIMER_DELIVER_MS")
        timers.send(apache, f"{name}-hour", 8, delay_ms=HOUR_MS, kind="TIMER_DELIVER_MS")
        timers.send(apache, f"{name}-days", 4, delay_ms=60 * HOUR_MS, kind="TIMER_DELAY_SEC")
        timers.send(apache, f"{name}-taken", 2, delay_ms=HOUR_MS, kind="TIMER_DELAY_MS")
        timers.recall(apache, timers.named(f"{name}-taken"))
        for level in PENDING_LEVELS:
            levels.send(apache, f"{name}-level{level}", 4, level=level)
        pending = {body for body, level in levels.levels.items() if level in PENDING_LEVELS}
        levels.wait(apache, sorted(levels.levels.keys() - pending))
        timers.wait(apache, timers.named(f"{name}-timer"))

    def end(self, kind: str) -> None:
        """Record the end of a round, and archive the store."""
        self.ends.append({"kind": "end", "store": kind, "at": now_ms()})
        name = f"apache-{self.apache.version}-{kind}"
        with tarfile.open(GOLDEN / "stores" / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(self.apache.store_dir, name, filter=without_owner)

    def lines(self) -> list[Line]:
        """Return the lines of the manifest."""
        sent: list[Line] = [
            {"kind": "sent", "topic": TOPIC, "body": body, "level": level}
            for body, level in self.levels.levels.items()
        ]
        sent += [
            {"kind": "sent", "topic": TOPIC, "body": body, "level": 0, "due_ms": due_ms}
            for body, due_ms in self.timers.due_ms.items()
        ]
        recalled: list[Line] = [
            {"kind": "recalled", "body": body} for body in sorted(self.timers.recalled)
        ]
        return [*sent, *recalled, *self.ends]


def without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an entry without names of the recording machine; None for RocksDB, which has paths."""
    if "rocksdbstore" in info.name:
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def record(version: str) -> None:
    """Record both stores of one version."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(Apache(version, Path(folder), keys=KEYS))
        with recording.apache as apache:
            apache.create_topic(TOPIC)
            recording.work("first")
            apache.stop()
        recording.end("clean")
        with recording.apache as apache:
            recording.work("second")
            apache.kill()
            recording.end("killed")
    path = GOLDEN / "manifests" / f"apache-{version}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in recording.lines()))


if __name__ == "__main__":
    record(sys.argv[1])
