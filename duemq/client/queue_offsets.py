"""Offsets of a push consumer: at the brokers, or of a broadcast consumer in a file."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from duemq.client.errors import ClientError
from duemq.client.message import MessageQueue
from duemq.client.pull_consumer import PullConsumer
from duemq.client.subscriptions import ConsumeFrom
from duemq_common.directories import replace_file
from duemq_common.log_lines import FailureLog
from duemq_common.topics import RETRY_PREFIX

log = logging.getLogger(__name__)


class BrokerOffsets:
    """Offsets at the brokers, shared by the consumers of a group. RemoteBrokerOffsetStore"""

    def __init__(self, reader: PullConsumer) -> None:
        self._reader = reader
        self._failures = FailureLog(log)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset; None: there is none."""
        return await self._reader.committed(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Commit offsets; return the queues for which it succeeded."""
        # Apache's brokers may lose first commits of a topic that come in parallel.
        topics = {queue.topic: queue for queue in offsets}
        first = list(topics.values())
        order = [*first, *(queue for queue in offsets if queue not in first)]
        results = await self._commit_all(order[: len(first)], offsets)
        results += await self._commit_all(order[len(first) :], offsets)
        committed = set()
        for queue, result in zip(order, results, strict=True):
            if isinstance(result, ClientError):
                text = "offset %d of %s is not committed"
                self._failures.failed(queue, result, text, offsets[queue], queue)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._failures.succeeded(queue)
                committed.add(queue)
        return committed

    async def _commit_all(
        self, queues: Sequence[MessageQueue], offsets: Mapping[MessageQueue, int]
    ) -> list[BaseException | None]:
        calls = (self._reader.commit(queue, offsets[queue]) for queue in queues)
        return await asyncio.gather(*calls, return_exceptions=True)


class LocalOffsets:
    """Offsets of a broadcast consumer in a JSON file. LocalFileOffsetStore

    Raises:
        ValueError: The file has another content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}
        try:
            for topic, broker, queue_id, offset in msgspec.json.decode(path.read_bytes()):
                self._offsets[MessageQueue(topic, broker, queue_id)] = int(offset)
        except FileNotFoundError:
            pass
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} does not contain offsets: {error}") from error

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset; None: there is none."""
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Write the file; return the queues."""
        self._offsets.update(offsets)
        rows = [
            [queue.topic, queue.broker_name, queue.queue_id, offset]
            for queue, offset in self._offsets.items()
        ]
        await asyncio.to_thread(_write, self._path, json.dumps(rows))
        return set(offsets)


QueueOffsets = BrokerOffsets | LocalOffsets
"""Committed offsets of the queues of a group."""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


async def start_offset(
    reader: PullConsumer, queue: MessageQueue, first: ConsumeFrom | datetime
) -> int:
    """Return the offset at which a group without a committed offset starts.

    Raises:
        ClientError: The broker does not respond.
    """
    if queue.topic.startswith(RETRY_PREFIX):
        return 0
    if isinstance(first, datetime):
        return await reader.offset_at(queue, first)
    if first is ConsumeFrom.FIRST:
        return await reader.min_offset(queue)
    return await reader.max_offset(queue)
