"""Filter pushdown: topics, times and log offsets of `messages`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

if TYPE_CHECKING:
    from spark_reconciliation.scan.options import ScanOptions


def narrowed(wanted: ScanOptions, one: object) -> ScanOptions | None:
    """Return the scan with a filter applied, None if it cannot be applied."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if wanted.table != "messages" or len(attribute) != 1:
        return None
    if attribute[0] == "topic" and isinstance(one, datasource.EqualTo):
        return _with_topics(wanted, {value})
    if attribute[0] == "topic" and isinstance(one, datasource.In):
        return _with_topics(wanted, set(value))
    return _within(wanted, attribute[0], one, value) if isinstance(value, int) else None


def _with_topics(wanted: ScanOptions, names: set[Any]) -> ScanOptions | None:
    if not all(isinstance(name, str) for name in names):
        return None
    left = frozenset(names & wanted.topics if wanted.topics else names)
    return replace(wanted, topics=left) if left else None


def _within(wanted: ScanOptions, name: str, one: object, value: int) -> ScanOptions | None:
    if isinstance(one, datasource.GreaterThan | datasource.GreaterThanOrEqual):
        first = value + isinstance(one, datasource.GreaterThan)
        if name == "store_ms":
            return replace(wanted, from_ms=max(wanted.from_ms, first))
        if name == "phys_offset":
            return replace(wanted, start=max(wanted.start, first))
    if isinstance(one, datasource.LessThan | datasource.LessThanOrEqual):
        end = value + isinstance(one, datasource.LessThanOrEqual)
        if name == "store_ms":
            return replace(wanted, until_ms=min(wanted.until_ms, end))
        if name == "phys_offset":
            return replace(wanted, end=min(wanted.end, end))
    return None
