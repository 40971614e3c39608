"""Delays of levels: the table of a text of messageDelayLevel, and the history of tables.

The tags code in the schedule queue is the due time of a message, and does not change. If a queue
unit is lost, the due time is computed again from the log, with the delays that were in force when
the message was stored. Therefore all tables are saved, each with the log offset where it begins:

    log      0 ........ 70_000 ............. now
    table    1s 5s 10s  2s 5s 10s 30s
                        ^ configuration changed while the log ended here
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from delayed_delivery.level_delays import LEVELS_KEY, parse_levels
from duemq_common.errors import ConfigError
from duemq_common.json_dialect import dumps

HISTORY_MAX = 1_000
TAGS_HASH_BITS = 31  # a tags code that fits into 32 bits is a tag's hash, not a time


class LevelTable(Struct, frozen=True):
    """Delays of levels 1..n in ms (index 0 unused), in force from a log offset on."""

    from_offset: int
    delays_ms: npt.NDArray[np.int64]


class LevelText(Struct, frozen=True):
    """A level text and the log offset from which it applies."""

    from_offset: int
    text: str


class LevelHistory:
    """Level tables that were in force for the records in the log.

    Attributes:
        tables: live and ascending by `from_offset`; the store's recovery reads them.
    """

    def __init__(self, texts: Sequence[LevelText]) -> None:
        assert texts
        self._texts = sorted(texts, key=lambda entry: entry.from_offset)
        self.tables: list[LevelTable] = [_table(entry) for entry in self._texts]

    @property
    def texts(self) -> Sequence[LevelText]:
        """The texts, ascending by offset."""
        return tuple(self._texts)

    @property
    def delays_ms(self) -> npt.NDArray[np.int64]:
        """The delays in force now, (levels + 1,)."""
        return self.tables[-1].delays_ms

    @property
    def text(self) -> str:
        """The level text in force now."""
        return self._texts[-1].text

    @property
    def unchanged(self) -> LevelHistory:
        """The history with its first table only."""
        return LevelHistory([LevelText(0, self._texts[0].text)])

    def delay_ms(self, phys_offset: int, level: int) -> int:
        """Return the delay of `level` that was in force at log offset `phys_offset`."""
        delays = self.table_at(phys_offset).delays_ms
        return int(delays[min(level, delays.size - 1)])

    def table_at(self, phys_offset: int) -> LevelTable:
        """Return the table that was in force at log offset `phys_offset`."""
        return self.tables[self._index_at(phys_offset)]

    def changed(self, text: str, from_offset: int) -> LevelHistory:
        """Return the history with `text` in force from `from_offset` on.

        Raises:
            ConfigError: The text is invalid, or the levels were changed too often.
        """
        texts = [entry for entry in self._texts if entry.from_offset < from_offset]
        texts.append(LevelText(from_offset if texts else 0, text))
        parse_levels(text)
        if len(texts) > HISTORY_MAX:
            reason = f"the levels were changed {HISTORY_MAX} times within the retained log"
            raise ConfigError(LEVELS_KEY, text, reason)
        return LevelHistory(texts)

    def before(self, offset: int) -> LevelHistory | None:
        """Return the history of a log that was truncated to `offset`, None if it has no table.

        A table that begins in the removed part is dropped, because another master may write the
        records that follow.
        """
        kept = [entry for entry in self._texts if entry.from_offset < offset]
        return LevelHistory(kept) if kept else None

    def with_known(self, recorded: LevelHistory, offset: int) -> LevelHistory:
        """Return the history with `recorded` up to `offset`, and the tables of this one after it.

        Args:
            recorded: History in a record of the level journal.
            offset: Log offset of that record.
        """
        texts = list(recorded._texts)
        for entry in self._texts:
            if entry.from_offset > offset and entry.text != texts[-1].text:
                texts.append(entry)
        return LevelHistory(texts)

    def first_difference(self, other: LevelHistory) -> int | None:
        """Return the first log offset at which both histories differ, None if they are equal."""
        starts = sorted({0, *(entry.from_offset for entry in (*self._texts, *other._texts))})
        return next(
            (
                position
                for position in starts
                if self._text_at(position) != other._text_at(position)
            ),
            None,
        )

    def _text_at(self, offset: int) -> str:
        return self._texts[self._index_at(offset)].text

    def _index_at(self, offset: int) -> int:
        """Return the index of the table that was in force at a log offset."""
        position = bisect.bisect_right(self._texts, offset, key=lambda entry: entry.from_offset)
        return max(position - 1, 0)

    def trimmed(self, log_min: int, log_end: int) -> LevelHistory:
        """Return the history without tables that apply to no retained record."""
        texts = [LevelText(min(p.from_offset, log_end), p.text) for p in self._texts]
        first = bisect.bisect_right(texts, log_min, key=lambda p: p.from_offset) - 1
        return LevelHistory(texts[max(first, 0) :])

    def replace(self, other: LevelHistory) -> None:
        """Replace the contents with `other`'s, for all components that share this object."""
        self._texts = list(other._texts)
        self.tables[:] = other.tables


def longest_delays(one: str, other: str) -> str:
    """Return a level text with the longer delay of each level in two texts."""
    tables = parse_levels(one), parse_levels(other)
    tokens = one.rstrip(" ").split(" "), other.rstrip(" ").split(" ")
    chosen = []
    for level in range(1, max(table.size for table in tables)):
        delays = [int(table[min(level, table.size - 1)]) for table in tables]
        longer = delays.index(max(delays))
        chosen.append(tokens[longer][min(level, len(tokens[longer])) - 1])
    return " ".join(chosen)


def _table(entry: LevelText) -> LevelTable:
    return LevelTable(entry.from_offset, parse_levels(entry.text))


class StoredLevels(NamedTuple):
    """Content of delayLevels.json.

    Attributes:
        adopted: Level to the first queue offset that Apache had not delivered when DueMQ first
            delivered from the store; deliveries before it have no origin in the log. None if DueMQ
            has only been a replica.
        generation: Number of the log's last truncation when the file was written.
    """

    history: LevelHistory
    adopted: dict[int, int] | None
    generation: int = 0


def encode_history(
    history: LevelHistory, adopted: dict[int, int] | None, generation: int = 0
) -> str:
    """Return the text of delayLevels.json; see `StoredLevels`."""
    return dumps(
        {"adopted": adopted, "history": rows_of(history), "logGeneration": generation},
    )


def rows_of(history: LevelHistory) -> list[dict[str, int | str]]:
    """Return a history as JSON values."""
    return [{"fromOffset": p.from_offset, "levels": p.text} for p in history.texts]


def history_of(rows: Any) -> LevelHistory:
    """Return the history that `rows_of` wrote.

    Raises:
        ValueError, TypeError, KeyError: The value is malformed.
    """
    texts = [LevelText(int(row["fromOffset"]), str(row["levels"])) for row in rows]
    if not texts:
        raise ValueError("the history is empty")
    try:
        return LevelHistory(texts)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def decode_history(data: Any) -> StoredLevels:
    """Return the content of a parsed delayLevels.json.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: The file is malformed.
    """
    adopted = data["adopted"]
    if adopted is not None:
        adopted = {int(level): int(offset) for level, offset in adopted.items()}
    return StoredLevels(history_of(data["history"]), adopted, int(data.get("logGeneration", 0)))
