"""Checkpoint files: the state of the timers at one instant.

    config/duemq.timers.json   positions, counts, precision; and the numbers of timercheck
    config/timercheck          Apache's seven numbers, 4096 bytes
    config/timermetrics        Apache's counts by topic

They are written in this order. duemq.timers.json contains the current and the previous numbers of
timercheck: after a crash between the writes the two files still match, and a timercheck that
equals neither was written by an Apache broker.

Source: org.apache.rocketmq.store.timer.TimerCheckpoint
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from duemq_common import config_sums
from duemq_common.directories import replace_file, sync_directory
from duemq_common.existence import exists
from duemq_common.json_dialect import backup_path, dumps, loads, write_config
from message_store.layout import packer
from timer_store.checkpoint.timer_metrics import METRICS_FILE, TimerMetrics
from timer_store.layout import TIMER_CHECK, TIMER_CHECK_BYTES

log = logging.getLogger(__name__)
SNAPSHOT_FILE: Final = "duemq.timers.json"
CHECK_FILE: Final = "timercheck"
COUNTER_MAX: Final = 2**63 - 1
CHECK_BYTES: Final = TIMER_CHECK.itemsize
_CHECK = packer(TIMER_CHECK)
_NAMES: Final = (
    "lastReadTimeMs",
    "lastTimerLogFlushPos",
    "lastTimerQueueOffset",
    "masterTimerQueueOffset",
    "stateVersion",
    "timestamp",
    "counter",
)


class Check(NamedTuple):
    """The seven numbers of timercheck, in its order; times in ms."""

    read_ms: int = 0
    log_pos: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """One instant of a timer store.

    Attributes:
        read_ms: the first slot that is not completely delivered.
        log_pos: end of the timer log.
        queue_offset: the next unit of the timer queue to enqueue.
        handover_offset, handover_unit: the next transferred unit to enqueue; see `Position`.
        log_offset: end of the commit log; timers settled after it are not included.
        scan_from: log offset before every delivery of a timer in a slot from `read_ms` on, before
            every record that settles a timer that is not enqueued, and before the first record of
            an unfinished decision.
        precision_ms: the width of a slot.
        window_ms: the roll window, which determines the slots of timers that roll; 0: unknown.
        staged_ms: slots before this time were loaded, and their units due later were rolled.
        by_topic: pending timers, by real topic.
        by_file: pending timers, by the first log offset of the commit log file with their record.
        version_ms: time of the snapshot, in ms since the epoch.
        counter: counter of the data version; set when the snapshot is written.
        generation: number of the commit log's last truncation.
    """

    read_ms: int
    log_pos: int
    queue_offset: int
    log_offset: int
    scan_from: int
    precision_ms: int
    window_ms: int = 0
    staged_ms: int = 0
    handover_offset: int = 0
    handover_unit: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)
    by_file: Mapping[int, int] = field(default_factory=dict)
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0
    generation: int = 0

    @property
    def check(self) -> Check:
        """Numbers of timercheck; both queue offsets, because Apache uses the smaller one."""
        return Check(
            self.read_ms,
            self.log_pos,
            self.queue_offset,
            self.queue_offset,
            self.state_version,
            self.version_ms,
            self.counter,
        )


# -- timercheck ---------------------------------------------------------------------------------


def encode_check(check: Check) -> bytes:
    """Return the 4096 bytes of timercheck; request code 60 returns the first 56."""
    return _CHECK.pack(*check).ljust(TIMER_CHECK_BYTES, b"\0")


def decode_check(data: bytes) -> Check | None:
    """Return the numbers of a timercheck; None if it is short, zeroed or has negative numbers."""
    if len(data) < CHECK_BYTES:
        return None
    check = Check(*_CHECK.unpack_from(data))
    return None if min(check) < 0 or not any(check) else check


# -- duemq.timers.json --------------------------------------------------------------------------


class SavedSnapshot(NamedTuple):
    """Contents of duemq.timers.json: a snapshot, and the check of the previous one."""

    snapshot: Snapshot
    previous: Check

    def belongs(self, check: Check | None, *, backup: bool = False) -> bool:
        """Return whether a timercheck matches this file, so that Apache has not written it since.

        None, a timercheck without content, matches any file. If this is the backup of a lost
        file, timercheck may be one checkpoint newer.
        """
        now = self.snapshot.check
        if check is None or check in (now, self.previous):
            return True
        forward = check.log_pos >= now.log_pos and check.queue_offset >= now.queue_offset
        return backup and check.counter == now.counter + 1 and forward


def encode_saved(saved: SavedSnapshot) -> str:
    """Return the text of duemq.timers.json."""
    snapshot = saved.snapshot
    value = {
        "byFile": {base: snapshot.by_file[base] for base in sorted(snapshot.by_file)},
        "byTopic": {topic: snapshot.by_topic[topic] for topic in sorted(snapshot.by_topic)},
        "check": dict(zip(_NAMES, snapshot.check, strict=True)),
        "checkBefore": dict(zip(_NAMES, saved.previous, strict=True)),
        "commitLogOffset": snapshot.log_offset,
        "handoverOffset": snapshot.handover_offset,
        "handoverUnit": snapshot.handover_unit,
        "logGeneration": snapshot.generation,
        "precisionMs": snapshot.precision_ms,
        "rollWindowMs": snapshot.window_ms,
        "scanFrom": snapshot.scan_from,
        "stagedMs": snapshot.staged_ms,
    }
    return dumps({**value, "crc32": _crc(value)})


def decode_saved(value: Any) -> SavedSnapshot:
    """Return the contents of a parsed duemq.timers.json.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: The file is malformed or damaged.
    """
    value = dict(value)
    crc = value.pop("crc32")
    if crc != _crc(value):
        raise ValueError(f"its crc32 is {crc}, its contents have {_crc(value)}")
    now, before = (Check(*(value[name][n] for n in _NAMES)) for name in ("check", "checkBefore"))
    snapshot = Snapshot(
        read_ms=now.read_ms,
        log_pos=now.log_pos,
        queue_offset=now.queue_offset,
        log_offset=value["commitLogOffset"],
        scan_from=value["scanFrom"],
        precision_ms=value["precisionMs"],
        window_ms=value.get("rollWindowMs", 0),
        staged_ms=value.get("stagedMs", 0),
        handover_offset=value.get("handoverOffset", 0),
        handover_unit=value.get("handoverUnit", 0),
        by_topic=value["byTopic"],
        by_file=value["byFile"],
        state_version=now.state_version,
        version_ms=now.version_ms,
        counter=now.counter,
        generation=value.get("logGeneration", 0),
    )
    return SavedSnapshot(snapshot, before)


def _crc(value: Mapping[str, Any]) -> int:
    return zlib.crc32(dumps(dict(sorted(value.items()))).encode())


# -- files --------------------------------------------------------------------------------------


class SnapshotFiles:
    """The three files, below `config/`.

    Attributes:
        check: Numbers of timercheck as last read or written, None without content.
        metrics: Contents of timermetrics.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.check: Check | None = None
        self.metrics = TimerMetrics()
        self._counter = 0

    def load(self) -> Snapshot | None:
        """Read the files; return the last snapshot that was written.

        None if no snapshot was written, it is lost, or an Apache broker has run since; `check` then
        has the numbers of that broker.
        """
        path = self.directory / CHECK_FILE
        self.check = _read_check(path)
        self._counter = 0 if self.check is None else self.check.counter
        self.metrics.load(self.directory / METRICS_FILE)
        main = self.directory / SNAPSHOT_FILE
        for candidate in (main, backup_path(main)):
            saved = _read(candidate)
            if saved is None:
                continue
            if not saved.belongs(self.check, backup=candidate != main):
                log.warning("%s was written by another broker since %s", path, candidate)
                return None
            self._counter = max(self._counter, saved.snapshot.counter)
            return saved.snapshot
        return None

    def forget(self) -> None:
        """Remove the files before timer log and wheel are rebuilt.

        Raises:
            OSError: A file cannot be removed.
        """
        main = self.directory / SNAPSHOT_FILE
        for path in (self.directory / CHECK_FILE, backup_path(main), main):
            path.unlink(missing_ok=True)
        sync_directory(self.directory)
        self.check = None

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot. May run in any thread, one call at a time.

        Raises:
            OSError: A file cannot be written; the previous snapshot is still valid.
        """
        before = self.check or Check()  # values of timercheck until it is replaced
        if snapshot.check[:4] == before[:4]:
            snapshot = replace(snapshot, counter=before.counter, version_ms=before.version_ms)
        else:
            self._counter = self._counter % COUNTER_MAX + 1
            snapshot = replace(snapshot, counter=self._counter)
        self.metrics.update(snapshot.by_topic, snapshot.version_ms)
        write_config(self.directory / SNAPSHOT_FILE, encode_saved(SavedSnapshot(snapshot, before)))
        write_check(self.directory / CHECK_FILE, snapshot.check)
        self.check = snapshot.check
        self.metrics.write(self.directory / METRICS_FILE)


def _read_check(path: Path) -> Check | None:
    try:
        if not exists(path):
            return None
        return decode_check(config_sums.checked(path, path.read_bytes()))
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror)
    except ValueError as error:
        log.warning("%s: %s", path, error)
    return None


def _read(path: Path) -> SavedSnapshot | None:
    if not exists(path):
        return None
    try:
        return decode_saved(loads(path.read_text("utf-8", "replace")))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        log.warning("%s cannot be used: %s", path, error)
        return None


def write_check(path: Path, check: Check) -> None:
    """Replace timercheck atomically: the disk always has the old or the new file.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    data = encode_check(check)
    replace_file(path, data)
    config_sums.record(path, data)
