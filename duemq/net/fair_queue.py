"""Queue of requests that takes one of each connection in turn.

A peer that sends a thousand requests at once waits for its own requests, not the others for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[K, T]):
    """A queue per key; `pop` takes from the keys in turn, and in order from each.

    Attributes:
        queues: The items of each key that has some, in the order of the turns; for reading.
    """

    def __init__(self) -> None:
        self.queues: dict[K, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self.queues)

    def __contains__(self, key: K) -> bool:
        return key in self.queues

    def add(self, key: K, item: T) -> None:
        """Put an item at the end of its key's queue."""
        queue = self.queues.get(key)
        if queue is None:
            self.queues[key] = deque((item,))
        else:
            queue.append(item)

    def pop(self) -> tuple[K, T]:
        """Return the next item and its key, whose next item comes after those of all other keys."""
        queues = self.queues
        key, queue = next(iter(queues.items()))
        item = queue.popleft()
        if not queue:
            del queues[key]
        elif len(queues) > 1:
            queues[key] = queues.pop(key)
        return key, item
