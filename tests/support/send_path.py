"""Send path of a broker: topics, an in-memory log, and both implementations of sends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from duemq.configuration.config import BrokerConfig
from duemq.net import codec
from duemq.net.meters import RpcMeter
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq.send import layout
from duemq.send.grants import Grants
from duemq.send.ingest import Ingest
from duemq.send.kernels.ingest import take_sends
from duemq.send.layout import host_column
from duemq.send.put_path import PutPath
from duemq.send.responses import DecodedSend, SendSettings
from duemq.send.send import SendProcessor, SendRules
from duemq.send.send_header import broker_suffix
from duemq.transactions.half_messages import to_half_message
from duemq_common.clock import FakeClock
from duemq_common.request import Request
from message_store.hooks import PutHook
from message_store.layout import PUT
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from message_store.replication.acknowledgement import Missing
from tests.support.fakes import FakeGroups

SUFFIX = broker_suffix(BrokerConfig())
HOME = (bytes([127, 0, 0, 1]), 10_911)
BORN = (bytes([10, 0, 0, 9]), 5_555)
BODY_BYTES_MAX = 20_000
RESULTS = ("store_ms", "phys_offset", "queue_offset", "tags_code", "record_size", "queue_slot")
POSITIONS = ("body_pos", "prop_pos", "uniq_pos")
INPUTS = tuple(name for name in PUT.names or () if name not in RESULTS + POSITIONS)


class RoutedTopics(TopicManager):
    """Topic manager without a file; it sets the routing of its topics."""

    def __init__(self, table: TopicTable) -> None:
        self.table = table
        self.configs: dict[str, TopicConfig] = {}
        self.reported: list[str] = []
        self.may_report = asyncio.Event()
        self.may_report.set()

    def install(self, name: str, queues: int = 4, perm: int = 6) -> TopicConfig:
        topic = TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)
        self.configs[name] = topic
        self.table.set_routing(
            name, write_queues=queues, read_queues=queues, perm=perm, closed=topic.closed
        )
        return topic

    def find(self, name: str) -> TopicConfig | None:
        return self.configs.get(name)

    async def create_for_send(
        self,
        name: str,
        *,
        default_topic: str,
        default_queues: int,
        unit_mode: bool = False,
        announce: bool = True,
    ) -> TopicConfig | None:
        await asyncio.sleep(0)
        return self.install(name, default_queues) if default_topic == "TBW102" else None

    async def ensure(self, name: str, *, queues: int, perm: int = 6) -> TopicConfig:
        return self.configs.get(name) or self.install(name, queues, perm)

    async def announce(self, topics: Sequence[TopicConfig]) -> None:
        await self.may_report.wait()
        self.reported += [topic.name for topic in topics]


@dataclass
class FakeLog:
    """Store that only assigns offsets."""

    max_offset: int = 0
    refusal: str = ""
    next_offset: dict[tuple[int, int], int] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    syncs: bool | None = None  # None: at once, False: never in time
    may_sync: asyncio.Event = field(default_factory=asyncio.Event)
    missing: Missing = Missing.DISK
    failure: Exception | None = None

    def put(self, batch: PutBatch) -> None:
        if self.failure is not None:
            raise self.failure
        self.batches.append(batch.count)
        for index in range(batch.count):
            row = batch.rows[index]
            if row["status"] == 0:
                queue = (int(row["topic_index"]), int(row["queue_id"]))
                row["queue_offset"] = self.next_offset.get(queue, 0)
                row["phys_offset"] = self.max_offset
                self.next_offset[queue] = int(row["queue_offset"]) + 1
                self.max_offset += 91 + int(row["body_len"]) + int(row["prop_len"])
                self.bodies.append(batch.body(index))

    async def wait_confirmed(self, end_offset: int) -> Missing | None:
        assert end_offset <= self.max_offset
        if self.syncs is not None:
            await self.may_sync.wait()
        return self.missing if self.syncs is False else None


class SendPath:
    """Components between frames and the log."""

    def __init__(self, *, confirmed: bool = False, hooks: Sequence[PutHook] = ()) -> None:
        self.clock = FakeClock()
        self.table = TopicTable()
        self.topics = RoutedTopics(self.table)
        self.topics.install("TBW102", 8, 7)
        self.topics.install("T")
        self.topics.install("closed")
        self.table.set_routing("closed", write_queues=4, read_queues=4, perm=6, closed=True)
        self.groups = FakeGroups(GroupConfig(name="g"), auto_create=False)
        self.locked: set[str] = set()
        self.log = FakeLog()
        self.rules = SendRules(suffix=SUFFIX, store_host=HOME, body_bytes_max=BODY_BYTES_MAX)
        self.hooks = list(hooks)
        self.path = PutPath(self.log, self.hooks, self.clock)
        self.sender = SendProcessor(
            self.table,
            self.topics,
            self.groups,
            half=to_half_message,
            run_hooks=self.path.run_hooks,
            group_locked=self.locked.__contains__,
            rules=lambda: self.rules,
            clock=self.clock,
            seed=1,
        )
        self.settings = SendSettings(
            suffix=SUFFIX,
            store_host=HOME,
            body_bytes_max=BODY_BYTES_MAX,
            confirmed=confirmed,
            broker_name="broker-a",
        )
        self.meter = RpcMeter(self.clock)
        self.new_ingest = partial(
            Ingest, self.path, self.table, self.sender, self.settings, self.meter
        )
        self.ingest = self.new_ingest(time_s=self.clock.monotonic_s)


class FastWay:
    """Ingest kernel with its arrays."""

    def __init__(
        self,
        table: TopicTable,
        born: tuple[bytes, int] = BORN,
        sender: npt.NDArray[Any] | None = None,
    ) -> None:
        self.table = table
        self.batch = PutBatch(64, 1 << 16)
        self.wire = np.zeros(64, layout.WIRE)
        turn = np.zeros(1, layout.TURN)
        turn["store_host"] = host_column(*HOME)
        self.state = turn["state"][0]
        self.sender = sender if sender is not None else Grants(None, table).sender(born).record
        limits = (codec.FRAME_BYTES_MAX, BODY_BYTES_MAX, 32_767)
        self.state[layout.STATE_FRAME_MAX : layout.STATE_PROPERTIES_MAX + 1] = limits
        suffix = np.frombuffer(SUFFIX, np.uint8).copy()
        self.into = (self.batch.rows, self.wire, self.batch.staging, suffix, turn)

    def take(self, data: bytes, tail: bytes = b"") -> int:
        """Run the kernel over `data` followed by `tail`; return STOP_*."""
        self.state[layout.STATE_ROWS] = self.state[layout.STATE_STAGED] = 0
        buffer = np.frombuffer(data + tail, np.uint8).copy()
        arrays = self.table.arrays
        names = (arrays.topics, arrays.names, arrays.table)
        stop, self.pos = take_sends(buffer, 0, len(data), self.sender, self.into, names)
        self.batch.count = int(self.state[layout.STATE_ROWS])
        self.batch.staging_len = int(self.state[layout.STATE_STAGED])
        return int(stop)


def frame_of(header: bytes, body: bytes = b"body", serialize_type: int = 0) -> bytes:
    """Return a frame with exactly this header."""
    word = serialize_type << 24 | len(header)
    return struct.pack("!iI", 4 + len(header) + len(body), word) + header + body


def decode(data: bytes) -> Request | codec.ReceivedResponse:
    frame = codec.next_frame(memoryview(data), 0, len(data))
    assert frame is not None
    return codec.decode_frame(memoryview(data), frame)


def send_request(
    *,
    code: int = 310,
    opaque: int = 1,
    body: bytes = b"body",
    oneway: bool = False,
    properties: str | None = "UNIQ_KEY\x01U1\x02",
    **changes: str | None,
) -> Request:
    """Return a send request; `changes` has long field names, None removes a field."""
    values: dict[str, str | None] = dict(
        zip(layout.SEND_FIELDS, ("p", "T", "TBW102", "4", "1", "0", "1700", "0"), strict=False)
    )
    values |= {"properties": properties, "reconsumeTimes": "0", "batch": "false"} | changes
    letters = dict(zip(layout.SEND_FIELDS, layout.SEND_LETTERS, strict=True))
    fields = {
        name if code == 10 else letters.get(name, name): value
        for name, value in values.items()
        if value is not None
    }
    return Request(code, fields, body, opaque=opaque, version=479, oneway=oneway)


def row_of(batch: PutBatch, index: int = 0) -> dict[str, Any]:
    """Return the values of a row that do not depend on positions."""
    row = batch.rows[index]
    values = {name: int(row[name]) for name in INPUTS}
    start, size = int(row["uniq_pos"]), int(row["uniq_len"])
    return values | {
        "body": batch.body(index),
        "properties": batch.property_text(index),
        "unique_id": batch.staging[start : start + size].tobytes(),
    }


def plain_way(front: SendPath, request: Request) -> tuple[DecodedSend, PutBatch]:
    """Fill a batch with the Python implementation."""
    batch = PutBatch(64, 1 << 16)
    return front.sender.fill(request, BORN, batch), batch
