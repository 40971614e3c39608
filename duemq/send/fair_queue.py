"""Round-robin queue of requests by connection and rank.

A connection with many requests does not delay the requests of other connections. Requests of one
rank do not delay those of another one: the caller says whose turn it is. The requests of one
connection stay in order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[K, T]):
    """One FIFO queue per key; `pop` serves the keys of a rank in turn.

    Args:
        ranks: Number of ranks.
    Attributes:
        keys: By rank, the keys whose next item has it, in turn order; read only.
    """

    def __init__(self, ranks: int = 1) -> None:
        # The first key of a dict is found by a search through the places of removed keys.
        self.keys: list[OrderedDict[K, None]] = [OrderedDict() for _ in range(ranks)]
        self._items: dict[K, deque[tuple[T, int]]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def add(self, key: K, item: T, rank: int = 0) -> None:
        """Append an item to its key's queue."""
        items = self._items.get(key)
        if items is None:
            self._items[key] = deque(((item, rank),))
            self.keys[rank][key] = None
        else:
            items.append((item, rank))

    def pop(self, rank: int = 0) -> tuple[K, T]:
        """Remove and return the next key of a rank and its item; the key's turn ends."""
        key, _ = self.keys[rank].popitem(last=False)
        items = self._items[key]
        item, _ = items.popleft()
        if items:
            self.keys[items[0][1]][key] = None
        else:
            del self._items[key]
        return key, item
