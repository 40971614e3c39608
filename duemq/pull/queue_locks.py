"""Queue locks of orderly consumers: 41 and 42. RebalanceLockManager, AdminBrokerProcessor.

A lock belongs to (group, queue, client), expires 60 s after its last renewal, in memory only. Its
times are those of `Clock.steady_ms`: a step of the wall clock neither ends nor extends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from delivery.plugin import Request, RequestHandler, Response
from duemq.net.codes import RequestCode, ResponseCode
from message_store.clock import Clock
from message_store.errors import RequestError

LOCK_LIVES_MS = 60_000
QUEUES_OF_REQUEST_MAX = 65_536
LOCKS_OF_GROUP_MAX = 1_000_000


class Queue(NamedTuple):
    """A queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


@dataclass(slots=True)
class Lock:
    """The client that locked a queue, and the time of its last renewal."""

    client_id: str
    renewed_ms: int  # of `Clock.steady_ms`

    def alive(self, now_ms: int) -> bool:
        return now_ms - self.renewed_ms <= LOCK_LIVES_MS


class LockTable:
    """All queue locks."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Queue, Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Lock every queue that is free, the client's own or expired; return the locked ones."""
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None and len(locks) >= LOCKS_OF_GROUP_MAX:
                continue
            if lock is None or not lock.alive(now_ms) or lock.client_id == client_id:
                locks[queue] = Lock(client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Take back the client's own locks; foreign ones stay."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    def any_alive(self, group: str, now_ms: int) -> bool:
        """Return whether the group has any valid lock: then it is an orderly consumer."""
        return any(lock.alive(now_ms) for lock in self._groups.get(group, {}).values())


class LockProcessor:
    """Answers 41 and 42."""

    def __init__(self, locks: LockTable, clock: Clock) -> None:
        self._locks, self._clock = locks, clock

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    async def lock(self, request: Request) -> Response:
        """Return the queues of the request that the client has locked now."""
        group, client_id, queues = parse_lock_body(request.body)
        held = self._locks.lock(group, client_id, queues, self._clock.steady_ms())
        body = msgspec.json.encode({"lockOKMQSet": [queue.to_json() for queue in held]})
        return Response(body=body)

    async def unlock(self, request: Request) -> Response:
        """Give up queues."""
        self._locks.unlock(*parse_lock_body(request.body))
        return Response()


def parse_lock_body(body: bytes) -> tuple[str, str, list[Queue]]:
    """Return group, client id and queues of a lock body; a missing set is empty.

    Raises:
        RequestError: With SYSTEM_ERROR when it is not of that shape.
    """
    try:
        data = msgspec.json.decode(body)
        listed = data.get("mqSet") or ()
        if len(listed) > QUEUES_OF_REQUEST_MAX:
            raise ValueError(f"{len(listed)} queues; the limit is {QUEUES_OF_REQUEST_MAX}")
        queues = [Queue(str(q["topic"]), str(q["brokerName"]), int(q["queueId"])) for q in listed]
        return str(data["consumerGroup"]), str(data["clientId"]), queues
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"lock body: {fault!r}") from fault
