"""File of registered property filters, consumerFilter.json, in Apache's format.

    {"filterDataByTopic":{"T":{"groupFilterData":{"G":{"expression":"a > 1",...}},"topic":"T"}}}

Apache uses the file only if it contains the positions of its Bloom filter. DueMQ evaluates every
message and writes them only for Apache, with Apache's default parameters. An unusable file is
replaced, since consumers register their filters with each heartbeat.
Source: ConsumerFilterManager, BloomFilter
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
BLOOM_HASHES, BLOOM_BITS = 3, 112  # for 32 groups and an error rate of 20 %
WORD: Final = (1 << 64) - 1
FIRST, SECOND = 0x87C37B91114253D5, 0x4CF5AD432745937F


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
        found = cls(ConfigFile(path_of(FILE_NAME)), FilterTable(clock.now_ms), clock)
        found.load()
        return found

    def load(self) -> None:
        """Load the file; its filters are dead until a heartbeat registers them again."""
        try:
            found = self._file.load(lambda data: list(_read(data)))
        except CorruptStore as fault:
            log.warning("%s; filters are registered again by heartbeats", fault)
            return
        for each in found or ():
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


def filter_json(known: RegisteredFilter) -> JsonObject:
    """Return the JSON form of a filter. Source: ConsumerFilterData"""
    return {
        "bloomFilterData": {
            "bitNum": BLOOM_BITS,
            "bitPos": bloom_positions(f"{known.group}#{known.topic}"),
        },
        "bornTime": known.born_ms,
        "clientVersion": known.version,
        "consumerGroup": known.group,
        "dead": known.dead_ms >= known.born_ms,
        "deadTime": known.dead_ms,
        "expression": known.expression,
        "expressionType": known.kind,
        "topic": known.topic,
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


def bloom_positions(name: str) -> list[int]:
    """Return the bit positions of a group and topic in Apache's Bloom filter."""
    hashed = murmur3(name.encode())
    low, high = hashed & 0xFFFF_FFFF, hashed >> 32
    positions = []
    for i in range(1, BLOOM_HASHES + 1):
        mixed = (low + i * high) & 0xFFFF_FFFF
        positions.append((mixed ^ 0xFFFF_FFFF if mixed >> 31 else mixed) % BLOOM_BITS)
    return positions


def murmur3(data: bytes) -> int:
    """Return the low 64 bits of MurmurHash3 x64 128 with seed 0."""
    h1 = h2 = 0
    for at in range(0, len(data), 16):
        block = data[at : at + 16]
        h1 ^= _mixed(int.from_bytes(block[:8], "little"), FIRST, SECOND, 31)
        h2 ^= _mixed(int.from_bytes(block[8:], "little"), SECOND, FIRST, 33)
        if len(block) == 16:
            h1 = (((_rotated(h1, 27) + h2) & WORD) * 5 + 0x52DCE729) & WORD
            h2 = (((_rotated(h2, 31) + h1) & WORD) * 5 + 0x38495AB5) & WORD
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & WORD
    h2 = (h2 + h1) & WORD
    return (_finished(h1) + _finished(h2)) & WORD


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & WORD


def _mixed(word: int, first: int, second: int, bits: int) -> int:
    return _rotated(word * first & WORD, bits) * second & WORD


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33
