"""Round-robin queue of requests by connection.

A connection with many requests does not delay the requests of other connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[K, T]):
    """One FIFO queue per key; `pop` serves the keys in turn.

    Attributes:
        queues: Non-empty queues by key, in turn order; read only.
    """

    def __init__(self) -> None:
        self.queues: dict[K, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.queues)

    def __contains__(self, key: K) -> bool:
        return key in self.queues

    def add(self, key: K, item: T) -> None:
        """Append an item to its key's queue."""
        queue = self.queues.get(key)
        if queue is None:
            self.queues[key] = deque((item,))
        else:
            queue.append(item)

    def pop(self) -> tuple[K, T]:
        """Remove and return the next key and item; a key with more items becomes the last."""
        queues = self.queues
        key, queue = next(iter(queues.items()))
        item = queue.popleft()
        if not queue:
            del queues[key]
        elif len(queues) > 1:
            queues[key] = queues.pop(key)
        return key, item
