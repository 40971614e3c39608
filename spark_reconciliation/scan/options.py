"""Options of a scan: table, topics, ranges; parsed from text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from duemq_common.errors import UsageError
from message_store.layout import RECORD_FIXED_BYTES
from spark_reconciliation.arrays import Rows
from spark_reconciliation.scan.planning import OFFSET_MAX, PARTITION_BYTES
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.tables import TABLES

FORMAT: Final = "rocketmq-store"
OPTIONS: Final = (
    "path",
    "table",
    "topics",
    "fromms",
    "untilms",
    "startoffset",
    "endoffset",
    "partitionbytes",
    "checkbody",
    "timerprecisionms",
    "roles",
    "tickms",
    "lost",
    "buckets",
    "places",
)
BUCKETS_MAX: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of a scan."""

    paths: tuple[str, ...]
    table: str = "messages"
    topics: frozenset[str] = frozenset()  # empty: all
    from_ms: int = 0
    until_ms: int = OFFSET_MAX
    start: int = 0
    end: int = OFFSET_MAX
    partition_bytes: int = PARTITION_BYTES
    check_body: bool = True
    precision_ms: int = 1_000
    roles: frozenset[int] = frozenset()  # empty: all
    tick_ms: int = 0
    lost: bool = False
    buckets: int = 64
    places: bool = False

    def keep(self, scan: RecordScan, rows: Rows) -> Rows:
        """Return the requested rows of a scan; segments select by offset."""
        mask = np.ones(rows.size, np.bool_)
        if self.topics:
            indexes = [scan.topics.find(name) for name in self.topics]
            mask &= np.isin(rows["topic_index"], indexes)
        if self.from_ms or self.until_ms < OFFSET_MAX:
            mask &= (rows["store_ms"] >= self.from_ms) & (rows["store_ms"] < self.until_ms)
        return rows if mask.all() else rows[mask]


def parse_options(options: Mapping[str, str]) -> ScanOptions:
    """Return the parsed options.

    Raises:
        UsageError: An option is missing, unknown or not a number.
    """
    given = {key.lower(): value for key, value in options.items()}
    if unknown := [key for key in given if key not in OPTIONS]:
        raise UsageError(f"unknown option {unknown[0]} of {FORMAT}; there are {', '.join(OPTIONS)}")
    paths = tuple(path.strip() for path in given.get("path", "").split(",") if path.strip())
    table = given.get("table", "messages")
    if not paths:
        raise UsageError(
            f"{FORMAT} needs the option path: a store directory, or several with commas"
        )
    if table not in TABLES:
        raise UsageError(f"{FORMAT} has no table {table}; there are {', '.join(TABLES)}")
    topics = given.get("topics", "")
    return ScanOptions(
        paths,
        table,
        frozenset(name.strip() for name in topics.split(",") if name.strip()),
        _number(given, "fromms", 0),
        _number(given, "untilms", OFFSET_MAX),
        _number(given, "startoffset", 0),
        _number(given, "endoffset", OFFSET_MAX),
        max(_number(given, "partitionbytes", PARTITION_BYTES), RECORD_FIXED_BYTES),
        given.get("checkbody", "true").lower() != "false",
        _number(given, "timerprecisionms", 1_000),
        _roles(given.get("roles", "")),
        _number(given, "tickms", 0),
        given.get("lost", "false").lower() == "true",
        min(max(_number(given, "buckets", 64), 1), BUCKETS_MAX),
        given.get("places", "false").lower() == "true",
    )


def _roles(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if any(not (word.isascii() and word.isdigit()) for word in words):
        raise UsageError(f"{FORMAT}: roles={text} is not a list of numbers")
    return frozenset(int(word) for word in words)


def _number(given: Mapping[str, str], key: str, default: int) -> int:
    text = given.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{FORMAT}: {key}={text} is not a number")
    return int(text)
