"""File of registered property filters, consumerFilter.json, in Apache's format.

    {"filterDataByTopic":{"T":{"groupFilterData":{"G":{"expression":"a > 1",...}},"topic":"T"}}}

Without the positions of its Bloom filter, Apache ignores the file, as it does if they differ. An
unusable file is replaced, since consumers register their filters with each heartbeat.
Source: ConsumerFilterManager
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from duemq.registry.config_file import ConfigFile, JsonObject, SavedTable
from duemq.registry.filter_table import FilterTable, RegisteredFilter
from duemq_common.clock import Clock
from duemq_common.errors import CorruptStore

log = logging.getLogger(__name__)
FILE_NAME: Final = "consumerFilter.json"
DEAD_KEPT_MS: Final = 24 * 3_600_000  # filterDataCleanTimeSpan
DEAD_AT_LOAD_MS: Final = 30_000


class FilterFile(SavedTable):
    """Filter table that is stored in its file."""

    def __init__(self, file: ConfigFile, table: FilterTable, clock: Clock) -> None:
        super().__init__(file)
        self.table, self._clock = table, clock
        self._written_changes = table.changes

    @classmethod
    def loaded(cls, path_of: Callable[[str], Path], clock: Clock) -> Self:
        """Return the filter table of a store.

        Args:
            path_of: Returns the path of a file in the store's config directory.
        """
        file = cls(ConfigFile(path_of(FILE_NAME)), FilterTable(clock.now_ms), clock)
        file.load()
        return file

    def load(self) -> None:
        """Load the file; its filters are dead until a heartbeat registers them again."""
        try:
            filters = self._file.load(lambda data: list(_read(data)))
        except CorruptStore as fault:
            log.warning("%s; filters are registered again by heartbeats", fault)
            return
        for each in filters or ():
            if each.dead_ms == 0:
                each.dead_ms = max(self._clock.now_ms() - DEAD_AT_LOAD_MS, each.born_ms)
            self.table.restore(each)
        self._written_changes = self.table.changes

    def to_json(self) -> dict[str, object]:
        """Return the content of the file."""
        topics: dict[str, dict[str, JsonObject]] = defaultdict(dict)
        for each in self.table:
            topics[each.topic][each.group] = filter_json(each)
        return {
            "filterDataByTopic": {
                topic: {"groupFilterData": groups, "topic": topic}
                for topic, groups in sorted(topics.items())
            }
        }

    def persist(self) -> None:
        """Write the file if the table has changed.

        Raises:
            OSError: The write failed.
        """
        self._remove_expired()
        super().persist()

    async def save(self) -> None:
        """Do the same as `persist` in a thread.

        Raises:
            OSError: The write failed.
        """
        self._remove_expired()
        await super().save()

    def _remove_expired(self) -> None:
        self.table.remove_dead_since(self._clock.now_ms() - DEAD_KEPT_MS)
        self._dirty |= self.table.changes != self._written_changes
        self._written_changes = self.table.changes


def filter_json(registered: RegisteredFilter) -> JsonObject:
    """Return the JSON form of a filter. Source: ConsumerFilterData"""
    return {
        "bornTime": registered.born_ms,
        "clientVersion": registered.version,
        "consumerGroup": registered.group,
        "dead": registered.dead_ms >= registered.born_ms,
        "deadTime": registered.dead_ms,
        "expression": registered.expression,
        "expressionType": registered.kind,
        "topic": registered.topic,
    }


def _read(data: JsonObject) -> Iterator[RegisteredFilter]:
    """Yield the filters of a file.

    Raises:
        ValueError: The content is malformed.
    """
    try:
        for topic, topic_data in (data.get("filterDataByTopic") or {}).items():
            for group, each in (topic_data.get("groupFilterData") or {}).items():
                yield RegisteredFilter(
                    group=str(group),
                    topic=str(topic),
                    expression=str(each["expression"]),
                    kind=str(each["expressionType"]),
                    version=int(each["clientVersion"]),
                    born_ms=int(each["bornTime"]),
                    dead_ms=int(each.get("deadTime") or 0),
                )
    except (AttributeError, KeyError, TypeError) as fault:
        raise ValueError(f"filterDataByTopic is not a table of filters: {fault!r}") from fault
