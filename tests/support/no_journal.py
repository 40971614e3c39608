"""Journals of tables that are in their files only."""

from __future__ import annotations

from typing import Any

from duemq.registry.groups import GroupConfig
from duemq.registry.journal_log import TableKind
from duemq.registry.table_journal import TableJournal
from duemq.registry.topic_config import TopicConfig
from duemq_common.errors import RecordUnreadable


class NoLog:
    """Journal log that drops records."""

    is_copied, is_read_only, refusal = False, False, ""

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """Return the bounds of an empty queue."""
        return 0, 0

    def body(self, queue_id: int, offset: int) -> bytes:
        """Raise: there is no record."""
        raise RecordUnreadable(offset, "there is no journal")

    def append(self, queue_id: int, body: bytes) -> None:
        """Drop the record."""

    async def confirm(self) -> None:
        """Return at once."""


def topic_journal() -> TableJournal[TopicConfig]:
    """Return the journal of a topic table without a log."""
    log: Any = NoLog()
    return TableJournal(TableKind.TOPIC, log, TopicConfig.from_json)


def group_journal() -> TableJournal[GroupConfig]:
    """Return the journal of a group table without a log."""
    log: Any = NoLog()
    return TableJournal(TableKind.GROUP, log, GroupConfig.from_json)
