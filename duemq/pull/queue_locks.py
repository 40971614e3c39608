"""Queue locks of orderly consumers (codes 41, 42). RebalanceLockManager, AdminBrokerProcessor.

A lock assigns a queue to a client for a group. Locks are in memory only. A lock expires 60 s after
its last renewal by `Clock.steady_ms`, which does not depend on the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from duemq.net.memory import MemoryBudget
from duemq.net.wire_json import QueueKey
from duemq.registry.heartbeats import CLIENT_ID_CHARS_MAX
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response

LOCK_EXPIRES_MS = 60_000
QUEUES_PER_REQUEST_MAX = 8_192  # the handler blocks the event loop
NAME_CHARS_MAX = 262  # of a retry topic; also of the other names
LOCK_BYTES = 1_024  # estimated objects of one lock


class Lock(Struct):
    """Lock of a queue for a group.

    Attributes:
        client_id: Client that owns the lock.
        renewed_ms: Time of the last renewal, by `Clock.steady_ms`.
    """

    client_id: str
    renewed_ms: int

    def is_valid(self, now_ms: int) -> bool:
        """Return whether the lock has not expired."""
        return now_ms - self.renewed_ms <= LOCK_EXPIRES_MS


class LockTable:
    """Queue locks of all groups. Times are those of `Clock.steady_ms`.

    Args:
        memory: Memory budget of the connections, in which each lock counts.
    """

    def __init__(self, memory: MemoryBudget | None = None) -> None:
        self._memory = memory or MemoryBudget()
        self._groups: dict[str, dict[QueueKey, Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[QueueKey], now_ms: int
    ) -> list[QueueKey]:
        """Lock or renew every queue that no other client has locked; return these queues.

        While memory is scarce, no further queues are locked.
        """
        listed = list(queues)
        if not self._memory.has_room(LOCK_BYTES * len(listed)):
            self._remove_expired(now_ms)
        locks, locked = self._groups.setdefault(group, {}), []
        for queue in listed:
            lock = locks.get(queue)
            if lock is None and not self._memory.reserve(LOCK_BYTES):
                continue
            if lock is None or not lock.is_valid(now_ms) or lock.client_id == client_id:
                locks[queue] = Lock(client_id, now_ms)
                locked.append(queue)
        if not locks:
            del self._groups[group]
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Release the client's locks of the queues; ignore locks of other clients."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._memory.free(LOCK_BYTES)
        if not locks:
            del self._groups[group]

    def _remove_expired(self, now_ms: int) -> None:
        for group, locks in list(self._groups.items()):
            kept = {queue: lock for queue, lock in locks.items() if lock.is_valid(now_ms)}
            self._memory.free(LOCK_BYTES * (len(locks) - len(kept)))
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]

    def any_alive(self, group: str, now_ms: int) -> bool:
        """Return whether the group has a lock that has not expired, as orderly consumers do."""
        return any(lock.is_valid(now_ms) for lock in self._groups.get(group, {}).values())


class LockProcessor:
    """Handler of codes 41 and 42."""

    def __init__(self, locks: LockTable, clock: Clock) -> None:
        self._locks, self._clock = locks, clock

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    async def lock(self, request: Request) -> Response:
        """Lock the queues of the request; return those that the client has locked."""
        group, client_id, queues = parse_lock_body(request.body)
        locked = self._locks.lock(group, client_id, queues, self._clock.steady_ms())
        body = msgspec.json.encode({"lockOKMQSet": [queue.to_json() for queue in locked]})
        return Response(body=body)

    async def unlock(self, request: Request) -> Response:
        """Release the locks of the queues of the request."""
        self._locks.unlock(*parse_lock_body(request.body))
        return Response()


def parse_lock_body(body: bytes) -> tuple[str, str, list[QueueKey]]:
    """Return group, client id and queues of a lock body; without `mqSet`, no queues.

    Raises:
        RequestError: The body is malformed (SYSTEM_ERROR).
    """
    try:
        data = msgspec.json.decode(body)
        listed = data.get("mqSet") or ()
        if len(listed) > QUEUES_PER_REQUEST_MAX:
            raise ValueError(f"{len(listed)} queues; the limit is {QUEUES_PER_REQUEST_MAX}")
        queues = [
            QueueKey(str(q["brokerName"]), int(q["queueId"]), str(q["topic"])) for q in listed
        ]
        group, client_id = str(data["consumerGroup"]), str(data["clientId"])
        texts = (group, *(name for queue in queues for name in (queue.topic, queue.broker_name)))
        if max(map(len, texts)) > NAME_CHARS_MAX or len(client_id) > CLIENT_ID_CHARS_MAX:
            raise ValueError("a name is too long")
        return group, client_id, queues
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"malformed lock body: {fault!r}") from fault
