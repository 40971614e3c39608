"""List of pending level messages, page by page: level by level, each in order of log offsets.

A cursor is a position of `PendingLevels.walk` and the log offset of the last message that was
returned or excluded. One call reads a bounded number of records; it may return fewer messages than
requested, even none, and a cursor to continue with.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Final, NamedTuple, Self

import numpy as np

from delayed_delivery.pending import Found, Position
from delayed_delivery.steps import Steps, in_turns
from delayed_delivery.view_fields import number
from duemq_common.codes import ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.index.key_search import search
from message_store.store import MessageStore
from schedule_service.decisions import PendingLevels

LIMIT: Final = 20
LIMIT_MAX: Final = 1_000
RECORDS_MAX: Final = 2_048  # records read in one call
RECORDS_PER_STEP: Final = 64
KEY_PIECE: Final = 512  # records with a key that are classified in one step
PIECES_MAX: Final = 64  # pieces of the queues read in one call
TIME_MS_MAX: Final = (1 << 63) - 1


class LevelListCursor(NamedTuple):
    """Position in the list; the message at `log_offset` is before it."""

    level: int = 0
    offset: int = 0
    log_offset: int = -1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor of a text; an empty text is the beginning of the list.

        Raises:
            RequestError: The text is not a cursor.
        """
        words = text.split("_")
        if not text:
            return cls()
        if len(words) != 3 or not all(word.lstrip("-").isdecimal() for word in words):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{text[:80]!r} is not a cursor of a list"
            )
        return cls(*map(int, words))

    def __str__(self) -> str:
        return "_".join(map(str, self))


class LevelQuery(NamedTuple):
    """Selection of messages: topic and key (empty: all), due times from `from_ms` to before
    `to_ms`, and the maximum number of messages of the page."""

    topic: str
    key: str
    from_ms: int
    to_ms: int
    limit: int


def list_view(
    pending: PendingLevels, store: MessageStore, fields: Mapping[str, str], now_ms: int
) -> Steps[dict[str, object]] | Coroutine[None, None, dict[str, object]]:
    """Return the next part of a list; with a key, a coroutine that looks it up.

    Args:
        fields: topic, key, from_ms, to_ms, limit, cursor; each may be missing.
    Raises:
        RequestError: A field is invalid.
    """
    query = LevelQuery(
        fields.get("topic", ""),
        fields.get("key", ""),
        number(fields, "from_ms", 0, TIME_MS_MAX),
        number(fields, "to_ms", TIME_MS_MAX, TIME_MS_MAX),
        min(max(number(fields, "limit", LIMIT, TIME_MS_MAX), 1), LIMIT_MAX),
    )
    page, cursor = _LevelPage(store, query, now_ms), LevelListCursor.parse(fields.get("cursor", ""))
    return page.of_key(pending, cursor) if query.key else page.of_levels(pending, cursor)


class _LevelPage:
    """Page in progress."""

    def __init__(self, store: MessageStore, query: LevelQuery, now_ms: int) -> None:
        self._store, self._query, self._now_ms = store, query, now_ms
        self._records_left = RECORDS_MAX
        self.messages: list[dict[str, object]] = []
        self.damage: list[str] = []

    async def of_key(self, pending: PendingLevels, cursor: LevelListCursor) -> dict[str, object]:
        """Return the messages with the key after a cursor, in order of log offsets.

        Raises:
            StoreError: Keys cannot be looked up now.
        """
        matches = await search(self._store, [SCHEDULE_TOPIC], [self._query.key])
        former = cursor.log_offset
        offsets = matches.offsets[matches.offsets > former]
        for first in range(0, offsets.size, KEY_PIECE):
            part = offsets[first : first + KEY_PIECE]
            last = await in_turns(self.add(pending.pending_of(part), former))
            if last is not None:
                return self._view(LevelListCursor(log_offset=last))
            former = int(part[-1])
        return self._view(None)

    def of_levels(
        self, pending: PendingLevels, cursor: LevelListCursor
    ) -> Steps[dict[str, object]]:
        """Return the messages after a cursor, level by level."""
        return self._view((yield from self.walk(pending, cursor)))

    def _view(self, cursor: LevelListCursor | None) -> dict[str, object]:
        return {
            "now_ms": self._now_ms,
            "messages": self.messages,
            "cursor": None if cursor is None else str(cursor),
            "damage": self.damage,
        }

    def walk(
        self, pending: PendingLevels, cursor: LevelListCursor
    ) -> Steps[LevelListCursor | None]:
        """Add the messages after a cursor; return the cursor of the next page, None at the end."""
        position: Position | None = (cursor.level, cursor.offset)
        log_offset = cursor.log_offset
        for _ in range(PIECES_MAX):
            if position is None:
                return None
            messages, following = pending.walk(position)
            last = yield from self.add(messages, log_offset)
            if last is not None:
                return LevelListCursor(*position, last)
            position, log_offset = following, -1
            yield
        return None if position is None else LevelListCursor(*position)

    def add(self, messages: Found, log_offset: int) -> Steps[int | None]:
        """Add the messages after a log offset.

        Returns:
            Log offset of the last message if the page is full; None if all were added.
        """
        order = np.argsort(messages.offsets, kind="stable")
        offsets, due_ms = messages.offsets[order], messages.due_ms[order]
        query = self._query
        keep = (offsets > log_offset) & (due_ms >= query.from_ms) & (due_ms < query.to_ms)
        for offset, due in zip(offsets[keep].tolist(), due_ms[keep].tolist(), strict=True):
            if len(self.messages) == query.limit or not self._records_left:
                return log_offset
            self._records_left -= 1
            self._add(offset, due)
            if self._records_left % RECORDS_PER_STEP == 0:
                yield
            log_offset = offset
        return None

    def _add(self, offset: int, due_ms: int) -> None:
        try:
            record = self._store.read_record(offset)
        except RecordUnreadable as error:
            self.damage.append(str(error))
            return
        properties = record.properties
        topic = properties.get("REAL_TOPIC")
        if self._query.topic not in ("", topic):
            return
        queue_id = properties.get("REAL_QID", "")
        self.messages.append(
            {
                "due_ms": due_ms,
                "level": record.queue_id + 1,
                "commit_log_offset": offset,
                "topic": topic,
                "queue_id": int(queue_id) if queue_id.isdecimal() else None,
                "unique_key": properties.get("UNIQ_KEY", ""),
                "keys": properties.get("KEYS", ""),
                "tag": properties.get("TAGS", ""),
                "stored_ms": record.store_ms,
                "body_bytes": len(record.body),
                "record_bytes": record.total_size,
            }
        )
