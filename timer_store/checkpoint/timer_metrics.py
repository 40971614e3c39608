"""`config/timermetrics`: pending timers by real topic, as Apache's tools read it.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
     "timingCount":{"TopicTest":{"count":2,"timeStamp":1700000000123}}}        (on one line)

The counts are those of `PendingCounts`, so they are exact, also after a crash. Recovery
does not use the file, and an unreadable file does not prevent a start.

Source: org.apache.rocketmq.store.timer.TimerMetrics
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import load_config, write_config

log = logging.getLogger(__name__)
METRICS_FILE: Final = "timermetrics"
_ESCAPED = re.compile(r"\\u[0-9a-f]{4}")


class Count(Struct, frozen=True):
    """Pending timers of one topic, and the time of the last change."""

    count: int
    time_ms: int


class TimerMetrics:
    """Pending timers by real topic, with Apache's data version.

    Attributes:
        counts: by topic, those that have or had timers.
        counter: Number of changes: one for each timer that was added or settled.
        version_ms: Time of the last change.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Count] = {}
        self.counter = 0
        self.state_version = 0
        self.version_ms = 0

    def update(self, pending: Mapping[str, int], now_ms: int) -> bool:
        """Set the counts; return whether anything changed.

        Args:
            pending: pending timers, by real topic; topics not named have none. The empty name
                stands for timers without a known topic and is left out.
        """
        changes = 0
        for topic in {*pending, *self.counts} - {""}:
            count, before = pending.get(topic, 0), self.counts.get(topic)
            if count == (0 if before is None else before.count):
                continue
            changes += abs(count - (0 if before is None else before.count))
            self.counts[topic] = Count(count, now_ms)
        self.counter += changes
        self.version_ms = now_ms if changes else self.version_ms
        return changes > 0

    def with_counts(self, pending: Mapping[str, int], now_ms: int) -> TimerMetrics:
        """Return a copy that is updated; the next checkpoint writes the counts of its own time."""
        metrics = copy(self)
        metrics.counts = dict(self.counts)
        metrics.update(pending, now_ms)
        return metrics

    def text(self) -> str:
        """Return the file's text, byte for byte as 5.3.3 writes it."""
        version = {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.version_ms,
        }
        counts = {
            topic: {"count": count.count, "timeStamp": count.time_ms}
            for topic, count in sorted(self.counts.items())
        }
        value = {"dataVersion": version, "timingCount": counts}
        text = json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")
        return _ESCAPED.sub(lambda match: "\\u" + match.group()[2:].upper(), text)

    def load(self, path: Path) -> None:
        """Load the file, or its backup if it is unreadable, or nothing."""
        try:
            metrics = load_config(path, _decode)
        except (CorruptStore, OSError) as error:
            log.warning("the counts of timermetrics begin at zero: %s", error)
            return
        if metrics is not None:
            self.counts, (self.counter, self.state_version, self.version_ms) = metrics

    def write(self, path: Path) -> None:
        """Replace the file; the previous one becomes its backup.

        Raises:
            OSError: The file cannot be written; the old one is unchanged.
        """
        write_config(path, self.text())


def _decode(value: Any) -> tuple[dict[str, Count], tuple[int, int, int]]:
    version = value.get("dataVersion") or {}
    counts = {
        str(topic): Count(int(item.get("count", 0)), int(item.get("timeStamp", 0)))
        for topic, item in (value.get("timingCount") or {}).items()
    }
    names = ("counter", "stateVersion", "timestamp")
    counter, state_version, version_ms = (int(version.get(name, 0)) for name in names)
    return counts, (counter, state_version, version_ms)
