"""Filter pushdown: topics, times and log offsets of `messages`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource

if TYPE_CHECKING:
    from spark_reconciliation.scan.options import ScanOptions


def narrowed(options: ScanOptions, one: object) -> ScanOptions | None:
    """Return the scan with a filter applied, None if it cannot be applied."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    value: Any = getattr(one, "value", None)
    if options.table != "messages" or len(attribute) != 1:
        return None
    if attribute[0] == "topic" and isinstance(one, datasource.EqualTo):
        return _with_topics(options, {value})
    if attribute[0] == "topic" and isinstance(one, datasource.In):
        return _with_topics(options, set(value))
    return _within(options, attribute[0], one, value) if isinstance(value, int) else None


def _with_topics(options: ScanOptions, names: set[Any]) -> ScanOptions | None:
    if not all(isinstance(name, str) for name in names):
        return None
    left = frozenset(names & options.topics if options.topics else names)
    return replace(options, topics=left) if left else None


def _within(options: ScanOptions, name: str, one: object, value: int) -> ScanOptions | None:
    if isinstance(one, datasource.GreaterThan | datasource.GreaterThanOrEqual):
        first = value + isinstance(one, datasource.GreaterThan)
        if name == "store_ms":
            return replace(options, from_ms=max(options.from_ms, first))
        if name == "phys_offset":
            return replace(options, start=max(options.start, first))
    if isinstance(one, datasource.LessThan | datasource.LessThanOrEqual):
        end = value + isinstance(one, datasource.LessThanOrEqual)
        if name == "store_ms":
            return replace(options, until_ms=min(options.until_ms, end))
        if name == "phys_offset":
            return replace(options, end=min(options.end, end))
    return None
