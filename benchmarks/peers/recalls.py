"""Cancels of RocketMQ timers by their recall handles, with DueMQ's client."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from duemq.client import Message, Producer
from duemq.client.decisions import PendingDecisions

IN_FLIGHT = 256
BODY = b"x" * 100


def cancels_per_second(namesrv: str, topic: str, count: int, due_ms: int) -> float | None:
    """Send timers and cancel each by a request; return cancels a second, None: no handles."""
    return asyncio.run(_cancels(namesrv, topic, count, datetime.fromtimestamp(due_ms / 1_000, UTC)))


async def _cancels(namesrv: str, topic: str, count: int, due: datetime) -> float | None:
    async with Producer(namesrv) as producer, PendingDecisions(namesrv) as decisions:
        handles = [""] * count
        numbers = iter(range(count))

        async def send() -> None:
            for number in numbers:
                result = await producer.send(Message(topic, BODY, deliver_at=due))
                handles[number] = result.recall_handle

        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
        if not all(handles):
            return None
        left = iter(handles)

        async def cancel() -> None:
            for handle in left:
                (result,) = await decisions.cancel(handles=[handle])
                if result.verdict != "done":
                    raise RuntimeError(f"a cancel was {result.verdict}: {result.remark}")

        start_s = time.perf_counter()
        await asyncio.gather(*(cancel() for _ in range(IN_FLIGHT)))
        return count / (time.perf_counter() - start_s)
