"""Round-robin queue of requests by connection; large requests wait for all others.

A connection with many requests does not delay the requests of other connections. A large request
may take as long as thousands of small ones, so that it has a queue of its own. The requests of one
connection stay in order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[K, T]):
    """One FIFO queue per key; `pop` serves the keys in turn.

    Attributes:
        small, large: Non-empty queues by key, in turn order, of the keys whose next item is small
            or large; read only.
        count: Number of items.
    """

    def __init__(self) -> None:
        # The first key of a dict is found by a search through the places of removed keys.
        self.small: OrderedDict[K, deque[tuple[T, bool]]] = OrderedDict()
        self.large: OrderedDict[K, deque[tuple[T, bool]]] = OrderedDict()
        self.count = 0

    def __contains__(self, key: K) -> bool:
        return key in self.small or key in self.large

    def add(self, key: K, item: T, *, is_large: bool = False) -> None:
        """Append an item to its key's queue."""
        self.count += 1
        queue = self.small.get(key) or self.large.get(key)
        if queue is None:
            (self.large if is_large else self.small)[key] = deque(((item, is_large),))
        else:
            queue.append((item, is_large))

    def pop(self, *, is_large: bool = False) -> tuple[K, T]:
        """Remove and return the next key and small or large item; the key's turn ends."""
        self.count -= 1
        queues = self.large if is_large else self.small
        key, queue = queues.popitem(last=False)
        item, _ = queue.popleft()
        if queue:
            (self.large if queue[0][1] else self.small)[key] = queue
        return key, item
