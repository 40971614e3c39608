"""Topic table with its journal in an in-memory log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duemq.registry import table_journal
from duemq.registry.journal_log import TableKind
from duemq.registry.table_journal import TableJournal
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion
from duemq_common.errors import RecordUnreadable, RequestError

QUEUE = TableKind.TOPIC.value


@dataclass
class FakeLog:
    """In-memory log.

    Attributes:
        bodies: Bodies of the records in the topic journal's queue; None: unreadable record.
        first: Minimum queue offset after retention.
    """

    bodies: list[bytes | None] = field(default_factory=list)
    first: int = 0
    refusal: str = ""
    is_copied: bool = True
    is_read_only: bool = False
    room: int = 1 << 30
    reads: int = 0
    confirmed: int = 0

    def bounds(self, queue_id: int) -> tuple[int, int]:
        assert queue_id == QUEUE
        return self.first, len(self.bodies)

    def body(self, queue_id: int, offset: int) -> bytes:
        assert self.first <= offset < len(self.bodies)
        self.reads += 1
        body = self.bodies[offset]
        if body is None:
            raise RecordUnreadable(offset, "damaged")
        return body

    def append(self, queue_id: int, body: bytes) -> None:
        if self.refusal or len(self.bodies) >= self.room:
            raise RequestError(14, self.refusal or "full")
        self.bodies.append(body)

    async def confirm(self) -> None:
        self.confirmed += 1


def topic(name: str, queues: int = 1, **more: Any) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues, **more)


def journal_on(fake: FakeLog, *, epoch: int = 0) -> TableJournal[TopicConfig]:
    return TableJournal(TableKind.TOPIC, fake, TopicConfig.from_json, epoch=epoch)


class Master:
    """Topic table with its journal, loaded from a table file."""

    def __init__(
        self,
        fake: FakeLog,
        table: Mapping[str, TopicConfig] | None = None,
        version: DataVersion | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        self.journal = journal_on(fake, epoch=epoch)
        self.table, self.version = dict(table or {}), version or DataVersion()
        self.is_replayed = False
        if (replayed := self.journal.replay(self.version)) is not None:
            self.table, self.version = replayed.applied_to(self.table), replayed.version
            self.is_replayed = True

    def change(self, *topics: TopicConfig, deleted: str = "") -> None:
        rows: dict[str, TopicConfig | None] = {each.name: each for each in topics}
        if deleted:
            rows[deleted] = None
        version = self.journal.version_after(self.version, self.version.timestamp_ms + 1)
        self.journal.append(rows, version)
        self.version = version
        self.table = table_journal.merged(self.table, rows)

    def snapshot(self) -> None:
        asyncio.run(self.journal.snapshot_if_needed(self.table, self.version))

    @property
    def file(self) -> tuple[dict[str, TopicConfig], DataVersion]:
        return dict(self.table), self.version
