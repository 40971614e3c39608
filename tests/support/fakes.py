"""Fakes of the processors' dependencies: in-memory store, peers, managers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupConfig, GroupManager
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common.errors import RecordUnreadable
from duemq_common.request import Peer, Request, Response
from message_store import layout
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.record import Record, decode_record
from message_store.queues.topic_table import TopicTable
from message_store.replication.acknowledgement import Missing
from tests.support.encoded_records import encode_record

HOST = (bytes([127, 0, 0, 1]), 10911)
WRITTEN = {
    "out_ms": "TIMER_OUT_MS",
    "due_ms": "DUEMQ_DUE_MS",
    "enqueue_ms": "TIMER_ENQUEUE_MS",
    "dequeue_ms": "TIMER_DEQUEUE_MS",
}


class FakePeer:
    """Connection that records sent requests and takes responses to calls from `answers`."""

    def __init__(self, name: str = "peer", port: int = 50_000) -> None:
        self.name = name
        self.address = ("127.0.0.1", port)
        self.born_host = (bytes([127, 0, 0, 1]), port)
        self.closed = False
        self.sent: list[Request] = []
        self.calls: list[Request] = []
        self.responses: dict[int, Response | Exception] = {}
        self._callbacks: list[Callable[[Peer], None]] = []

    def send_oneway(self, request: Request) -> None:
        if not self.closed:
            self.sent.append(request)

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        self.calls.append(request)
        response = self.responses.get(request.code, TimeoutError())
        if isinstance(response, Exception):
            raise response
        return response

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        self.closed = True
        for callback in self._callbacks:
            callback(self)

    def codes(self) -> list[int]:
        return [int(request.code) for request in self.sent]


def fake_topic(
    name: str, read_queues: int = 4, write_queues: int = 4, perm: int = 6, **others: Any
) -> TopicConfig:
    """Return a topic with four queues."""
    return TopicConfig(
        name=name, read_queues=read_queues, write_queues=write_queues, perm=perm, **others
    )


class FakeTopics(TopicManager):
    """Topic manager without a file."""

    def __init__(self, *topics: TopicConfig) -> None:
        self.table = self._table = {topic.name: topic for topic in topics}

    def find(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    async def ensure_all(self, topics: Sequence[TopicConfig]) -> None:
        for topic in topics:
            await self.ensure(topic.name, queues=topic.read_queues, perm=topic.perm)

    async def ensure(self, name: str, *, queues: int, perm: int = 6) -> TopicConfig:
        return self.table.setdefault(name, fake_topic(name, queues, queues, perm))


class FakeGroups(GroupManager):
    """Consumer group manager without a file."""

    def __init__(self, *groups: GroupConfig, auto_create: bool = True) -> None:
        self.table = self._table = {group.name: group for group in groups}
        self.auto_create = auto_create

    def find(self, name: str) -> GroupConfig | None:
        return self.table.get(name)

    def find_or_create(self, name: str) -> GroupConfig | None:
        if self.auto_create:
            return self.table.setdefault(name, GroupConfig(name=name))
        return self.table.get(name)


class FakeOffsets(OffsetManager):
    """Consumer offset manager without a file."""

    def __init__(self, table: Mapping[tuple[str, str, int], int] | None = None) -> None:
        self.table = dict(table or {})
        self.pulls: dict[tuple[str, str, int], int] = {}
        self.resets: dict[tuple[str, str, int], int] = {}

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.table.get((group, topic, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table[group, topic, queue_id] = offset

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.pulls[group, topic, queue_id] = offset

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.resets.get((group, topic, queue_id))

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.resets.pop((group, topic, queue_id), None)

    def set_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.resets[group, topic, queue_id] = offset

    def of_pair(self, group: str, topic: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        own = {
            queue_id: offset
            for (name, other, queue_id), offset in self.table.items()
            if (name, other) == (group, topic)
        }
        return own, {}


class FakeRepair:
    """Queue repair that finds no damaged unit."""

    def repaired(self, topic: str, queue_id: int, offset: int) -> bool:
        return False

    def compare(self, topic: str, queue_id: int, units: Any, offset: int) -> bool:
        return False


class FakeStore:
    """A store in memory with the methods that processors use."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.topics = TopicTable()
        self.log = bytearray()
        self.queues: dict[int, list[tuple[int, int, int]]] = {}
        self.first: dict[int, int] = {}
        self.min_offset = 0
        self.damaged: set[int] = set()
        self.dispatchers: list[Callable[[PutBatch], None]] = []
        self.writable, self.refusal = True, ""
        self.unconfirmed: int | None = None  # end of the confirmed log; None: the whole log
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.config = StoreConfig()
        self.repair = FakeRepair()

    @property
    def max_offset(self) -> int:
        return len(self.log)

    @property
    def confirm_offset(self) -> int:
        return len(self.log) if self.unconfirmed is None else self.unconfirmed

    def when_confirmed(self, offset: int, call: Callable[[], None]) -> None:
        self.waiting.append((offset, call))

    def confirm(self, offset: int) -> None:
        """Confirm the log up to an offset, so that consumers can read it."""
        self.unconfirmed = offset
        ready = [call for end, call in self.waiting if end <= offset]
        self.waiting = [(end, call) for end, call in self.waiting if end > offset]
        for call in ready:
            call()

    def add_dispatcher(self, dispatcher: Callable[[PutBatch], None], *, topic: str = "") -> None:
        self.dispatchers.append(dispatcher)

    def put(self, batch: PutBatch) -> None:
        batch.queue_slots.clear()
        for index in range(batch.count):
            if batch.rows[index]["status"] == 0:
                self._put_row(batch, index)
                batch.queue_slots[int(batch.rows[index]["queue_slot"])] = None
        for dispatcher in self.dispatchers:
            dispatcher(batch)

    def _put_row(self, batch: PutBatch, index: int) -> None:
        row = batch.rows[index]
        slot = self.topics.slot(int(row["topic_index"]), int(row["queue_id"]), create=True)
        queue = self.queues.setdefault(slot, [])
        row["store_ms"], row["phys_offset"] = self.clock.now_ms(), len(self.log)
        row["queue_offset"], row["queue_slot"] = len(queue), slot
        late = int(row["due_delay_ms"])
        row["tags_code"] = row["tags_hash"] if late < 0 else row["store_ms"] + late
        properties = batch.property_text(index)
        for column, name in WRITTEN.items():
            if row[column] >= 0:
                properties += f"{name}\x01{row[column]}\x02".encode()
        if row["real_topic_index"] >= 0:
            real = self.topics.name(int(row["real_topic_index"]))
            properties += f"REAL_TOPIC\x01{real}\x02REAL_QID\x01{row['real_queue_id']}\x02".encode()
        columns: tuple[str, ...] = (
            "queue_id",
            "flag",
            "queue_offset",
            "phys_offset",
            "sys_flag",
            "born_ms",
        )
        columns += ("store_ms", "reconsume_times", "prepared_offset")
        record = encode_record(
            topic=self.topics.name(int(row["topic_index"])),
            body=batch.body(index),
            property_text=properties,
            born_host=(int(row["born_ip_lo"]).to_bytes(4, "big"), int(row["born_port"])),
            store_host=(int(row["store_ip_lo"]).to_bytes(4, "big"), int(row["store_port"])),
            **{name: int(row[name]) for name in columns},
        )
        row["record_size"] = len(record)
        queue.append((len(self.log), int(row["tags_code"]), len(record)))
        self.log += record

    async def wait_confirmed(self, end_offset: int) -> Missing | None:
        return None

    def _slot(self, topic: str, queue_id: int) -> int:
        index = self.topics.find(topic)
        return -1 if index < 0 else self.topics.slot(index, queue_id)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        slot = self._slot(topic, queue_id)
        return self.first.get(slot, 0), len(self.queues.get(slot, ()))

    def readable_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        low, high = self.queue_bounds(topic, queue_id)
        while high > low and sum(self.queues[self._slot(topic, queue_id)][high - 1][::2]) > (
            self.confirm_offset
        ):
            high -= 1
        return low, high

    def consumer_bounds(self, topic: str, queue_id: int) -> tuple[int, int, int]:
        return *self.readable_bounds(topic, queue_id), self.queue_bounds(topic, queue_id)[1]

    def units(self, topic: str, queue_id: int, offset: int, count_max: int) -> Any:
        low, high = self.queue_bounds(topic, queue_id)
        chosen = []
        if low <= offset < high:
            chosen = self.queues[self._slot(topic, queue_id)][offset : offset + count_max]
        return np.array([(*unit, i) for i, unit in enumerate(chosen)], layout.UNIT)

    def sound_units(self, units: Any) -> Any:
        return units

    def visit_records(self, units: Any, visit: Callable[[Any, Any, int], int]) -> None:
        visit(np.frombuffer(bytes(self.log), np.uint8), units, 0)

    def read_record(self, phys_offset: int) -> Record:
        return decode_record(memoryview(bytes(self.log[phys_offset:])), phys_offset)

    def gather(self, topic: str, queue_id: int, offset: int, units: Any) -> bytes:
        parts = []
        for unit in units:
            start = int(unit["phys_offset"])
            if start in self.damaged:
                raise RecordUnreadable(start, "damaged by the test")
            parts.append(bytes(self.log[start : start + int(unit["size"])]))
        return b"".join(parts)

    def search_offset(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        low, high = self.queue_bounds(topic, queue_id)
        times = [self._store_ms(topic, queue_id, n) for n in range(low, high)]
        if upper:
            return low + max(sum(t <= time_ms for t in times) - 1, 0)
        return low + sum(t < time_ms for t in times)

    def earliest_store_ms(self, topic: str, queue_id: int) -> int:
        low, high = self.queue_bounds(topic, queue_id)
        return self._store_ms(topic, queue_id, low) if high > low else -1

    def _store_ms(self, topic: str, queue_id: int, offset: int) -> int:
        start = self.queues[self._slot(topic, queue_id)][offset][0]
        head = np.frombuffer(self.log, layout.RECORD_HEAD, 1, start)
        return int(head["store_ms"][0])


def put(
    store: Any,
    topic: str,
    *bodies: bytes,
    queue_id: int = 0,
    properties: bytes = b"",
    born_ms: int = 1,
) -> PutBatch:
    """Store messages in one queue; return the batch."""
    batch = PutBatch(max(len(bodies), 1))
    for body in bodies:
        batch.add(
            topic_index=store.topics.add(topic),
            queue_id=queue_id,
            body=body,
            properties=properties,
            born_ms=born_ms,
            born_host=HOST,
            store_host=HOST,
        )
    store.put(batch)
    return batch


async def settle(turns: int = 20) -> None:
    """Run all ready tasks."""
    for _ in range(turns):
        await asyncio.sleep(0)
