"""Topic table of the kernels: dense indexes, columns, and a hash table of names.

    name --hash--> topic_index --+ queue_id--> queue_slot --> next_offset, ...

Indexes and slots do not change while the store is open; a deleted topic keeps its index, with
`write_queues` 0. The broker sets the columns of routing (queues, perm, closed).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from message_store.layout import Rows

NAME_BYTES_MAX = 255
QUEUES_MAX = 65_536

TOPIC = np.dtype(
    [
        ("name_hash", "u8"),
        ("name_pos", "i4"),
        ("name_len", "i4"),
        ("slots_pos", "i4"),  # first entry of this topic in slot_map
        ("slots_len", "i4"),
        ("write_queues", "i4"),
        ("read_queues", "i4"),
        ("perm", "i4"),
        ("closed", "i4"),  # 1: clients may not send to it
    ],
    align=True,
)
QUEUE = np.dtype(
    [
        ("next_offset", "i8"),
        ("topic_index", "i4"),
        ("queue_id", "i4"),
    ],
    align=True,
)


class TopicArrays(NamedTuple):
    """Arrays by which kernels find topics and number messages; valid until the table grows."""

    topics: Rows  # (n,) TOPIC
    names: npt.NDArray[np.uint8]  # (n,) all names, end to end
    table: npt.NDArray[np.int32]  # (2^k,) open addressing: topic index or -1
    slot_map: npt.NDArray[np.int32]  # (n,) queue slot or -1
    queues: Rows  # (n,) QUEUE


def name_hash(name: bytes) -> int:
    """Return FNV-1a, 64 bits. `kernels.topics.hash_name` is its compiled twin."""
    value = 0xCBF29CE484222325
    for byte in name:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFF_FFFF_FFFF_FFFF
    return value


class TopicTable:
    """Table of topics and queues, for Python and for kernels.

    Attributes:
        routings: Number of changes of routing so far.
    """

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._names: list[str] = []
        self._topics = np.zeros(64, TOPIC)
        self._blob = np.zeros(4096, np.uint8)
        self._blob_len = 0
        self._table = np.full(256, -1, np.int32)
        self._slot_map = np.full(1024, -1, np.int32)
        self._slot_map_len = 0
        self._queues = np.zeros(1024, QUEUE)
        self._queue_count = 0
        self._arrays: TopicArrays | None = None  # None: an array was replaced
        self.routings = 0
        self._routed_count = 0  # topics with queues for writes
        self._view_slots()

    @property
    def arrays(self) -> TopicArrays:
        """Current arrays, which are replaced when the table grows."""
        if self._arrays is None:
            self._arrays = TopicArrays(
                self._topics, self._blob, self._table, self._slot_map, self._queues
            )
        return self._arrays

    def _view_slots(self) -> None:
        """View the columns of `slot`; an item of a view is read in a fifth of a record's time."""
        self._positions = self._topics["slots_pos"].data
        self._lengths = self._topics["slots_len"].data
        self._slots = self._slot_map.data

    def __len__(self) -> int:
        return len(self._names)

    @property
    def queue_count(self) -> int:
        """Number of queue slots."""
        return self._queue_count

    @property
    def has_routes(self) -> bool:
        """Whether topics have queue counts, so that a topic without queues was deleted."""
        return self._routed_count > 0

    def find(self, name: str) -> int:
        """Return the index of a topic, or -1."""
        return self._index.get(name, -1)

    def name(self, topic_index: int) -> str:
        """Return the name of a topic."""
        return self._names[topic_index]

    def add(self, name: str) -> int:
        """Return the index of a topic; add the topic if it is new."""
        topic_index = self._index.get(name)
        if topic_index is not None:
            return topic_index
        data = name.encode()
        assert 0 < len(data) <= NAME_BYTES_MAX
        index = len(self._names)
        if index == self._topics.size:
            self._topics = np.concatenate([self._topics, np.zeros_like(self._topics)])
            self._arrays = None
            self._view_slots()
        if self._blob_len + len(data) > self._blob.size:
            self._blob = np.concatenate([self._blob, np.zeros_like(self._blob)])
            self._arrays = None
        self._blob[self._blob_len : self._blob_len + len(data)] = np.frombuffer(data, np.uint8)
        row = self._topics[index]
        row["name_hash"] = name_hash(data)
        row["name_pos"], row["name_len"] = self._blob_len, len(data)
        self._blob_len += len(data)
        self._names.append(name)
        self._index[name] = index
        self._insert(index)
        return index

    def set_routing(
        self, name: str, *, write_queues: int, read_queues: int, perm: int, closed: bool = False
    ) -> int:
        """Set the columns by which sends are checked; return the index of the topic."""
        index = self.add(name)
        row = self._topics[index]
        self._routed_count += int(write_queues > 0) - int(row["write_queues"] > 0)
        row["write_queues"], row["read_queues"] = write_queues, read_queues
        row["perm"], row["closed"] = perm, int(closed)
        self.routings += 1
        self._grow_slots(index, max(write_queues, read_queues))
        return index

    def slot(self, topic_index: int, queue_id: int, *, create: bool = False) -> int:
        """Return the slot of a queue, or -1 (with `create`: a new one)."""
        if queue_id < self._lengths[topic_index]:
            slot: int = self._slots[self._positions[topic_index] + queue_id]
            if slot >= 0 or not create:
                return slot
        elif not create:
            return -1
        else:  # a start adds the queues of a topic one by one; each growth moves its entries
            doubled = min(2 * int(self._lengths[topic_index]), QUEUES_MAX)
            self._grow_slots(topic_index, max(queue_id + 1, doubled))
        if self._queue_count == self._queues.size:
            self._queues = np.concatenate([self._queues, np.zeros_like(self._queues)])
            self._arrays = None
        slot = self._queue_count
        self._queue_count += 1
        self._queues[slot] = (0, topic_index, queue_id)
        self._slot_map[int(self._topics[topic_index]["slots_pos"]) + queue_id] = slot
        return slot

    def queue_of(self, slot: int) -> tuple[int, int]:
        """Return (topic_index, queue_id) of a slot."""
        row = self._queues[slot]
        return int(row["topic_index"]), int(row["queue_id"])

    def next_offset(self, slot: int) -> int:
        """Return the queue offset of the next message of a queue."""
        return int(self._queues[slot]["next_offset"])

    def set_next_offset(self, slot: int, value: int) -> None:
        """Set the next queue offset; for recovery and removals only."""
        self._queues[slot]["next_offset"] = value

    def _insert(self, index: int) -> None:
        if (index + 1) * 2 > self._table.size:
            self._table = np.full(self._table.size * 2, -1, np.int32)
            self._arrays = None
            for other in range(index):
                self._place(other)
        self._place(index)

    def _place(self, index: int) -> None:
        mask = self._table.size - 1
        spot = int(self._topics[index]["name_hash"]) & mask
        while self._table[spot] >= 0:
            spot = (spot + 1) & mask
        self._table[spot] = index

    def _grow_slots(self, index: int, count: int) -> None:
        assert count <= QUEUES_MAX
        row = self._topics[index]
        old_pos, old_len = int(row["slots_pos"]), int(row["slots_len"])
        if count <= old_len:
            return
        while self._slot_map_len + count > self._slot_map.size:
            self._slot_map = np.concatenate([self._slot_map, np.full_like(self._slot_map, -1)])
            self._arrays = None
            self._view_slots()
        pos = self._slot_map_len
        self._slot_map[pos : pos + old_len] = self._slot_map[old_pos : old_pos + old_len]
        self._slot_map_len += count
        row["slots_pos"], row["slots_len"] = pos, count
