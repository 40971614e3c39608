"""Replay of recorded client streams to a DueMQ broker, over in-memory connections.

For each recorded frame the replay advances the clock to the frame's time. A request is written to
its connection; at a response, DueMQ must have responded to the same request.

Log offsets differ between the recorded broker and DueMQ. The replay replaces the offsets in
requests (33, 36, 37) by those from DueMQ's responses to sends and from its check-backs.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duemq.broker.broker import Broker
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.route_table import Registration
from duemq.namesrv.server import NameServer
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.data_version import DataVersion
from message_store.log.offset_id import decode_offset_id
from tests.support.replica_rig import until

FRAMES = Path(__file__).parent.parent / "golden" / "frames"
STEP_MS = 200
SAMPLE_MS = 10_000
TURNS = 12
OFFSET_FIELDS = {36: "offset", 37: "commitLogOffset", 33: "offset"}


KNOWN_BEFORE = Registration(
    cluster="DefaultCluster",
    broker_name="broker-a",
    broker_id=0,
    address="127.0.0.1:10911",
    ha_address="192.0.2.2:10912",
    version=DataVersion(),
    topics=[TopicConfig(name="GoT"), TopicConfig(name="CppT")],
)
"""Topics registered before the recording; a registration of new topics would be refused."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame of a recording; one line of its file."""

    connection: int
    server: str
    is_response: bool
    at_ms: int
    header: dict[str, Any]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def key(self) -> tuple[str, int, int]:
        return self.server, self.connection, int(self.header["opaque"])

    @property
    def fields(self) -> dict[str, str]:
        return self.header.get("extFields") or {}

    @property
    def is_oneway(self) -> bool:
        return bool(self.header["flag"] & 2)


def read_frames(name: str) -> list[Frame]:
    """Return the frames of a recording in time order."""
    with gzip.open(FRAMES / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        Frame(
            row["conn"],
            row["server"],
            bool(row["header"]["flag"] & 1),
            row["t_ms"],
            row["header"],
            base64.b64decode(row.get("body_b64") or ""),
        )
        for row in rows
        if row["dir"] == "request" or row["header"]["flag"] & 1 or row["header"]["code"] in (39, 40)
    ]


class Wire(asyncio.Transport):
    """Transport that records the frames that the server writes, as (header, body)."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port)})
        self.written = bytearray()
        self.lost = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.lost

    def close(self) -> None:
        self.lost = True

    def take(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames written since the last call."""
        frames, data = [], bytes(self.written)
        self.written.clear()
        while data:
            length, head = (int.from_bytes(data[pos : pos + 4], "big") for pos in (0, 4))
            size = head & 0xFF_FFFF
            frames.append((json.loads(data[8 : 8 + size]), data[8 + size : 4 + length]))
            data = data[4 + length :]
        return frames


@dataclass(slots=True)
class Answer:
    """Response of one broker."""

    code: int
    fields: dict[str, str]
    remark: str | None
    body: bytes


@dataclass(slots=True)
class Exchange:
    """Recorded request with the responses of Apache and DueMQ; None: no response."""

    request: Frame
    theirs: Answer | None = None
    ours: Answer | None = None


@dataclass
class Replay:
    """Replay of one recording.

    Attributes:
        exchanges: Exchanges by (server, connection, opaque), in order.
        pushed: Codes of the requests that each broker sent to clients.
    """

    broker: Broker
    clock: FakeClock
    exchanges: dict[tuple[str, int, int], Exchange] = field(default_factory=dict)
    pushed: dict[str, list[int]] = field(default_factory=lambda: {"theirs": [], "ours": []})
    _wires: dict[tuple[str, int], tuple[Connection, Wire]] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)  # log offsets: recorded -> DueMQ's
    _checks: list[dict[str, str]] = field(default_factory=list)
    _sampled_ms: int = 0

    def __post_init__(self) -> None:
        self._ingest = self.broker.new_ingest()
        config = NamesrvConfig(kv_config_path="")
        self._other = NameServer(
            config, self.clock
        )  # for the recorded broker, which has the same name as ours
        self._brokers: set[int] = set()  # name server connections of recorded brokers

    async def run(self, frames: list[Frame]) -> list[Exchange]:
        """Send every request at its time; return the exchanges."""
        self._wires.clear()
        self.exchanges.clear()
        self._other.register_local(KNOWN_BEFORE)
        self._brokers = {frame.connection for frame in frames if frame.code == 103}
        for frame in frames:
            await self._go_to(frame.at_ms)
            if frame.is_response:
                exchange = self.exchanges.get(frame.key)
                if exchange is not None:
                    exchange.theirs = Answer(
                        frame.code, frame.fields, frame.header.get("remark"), frame.body
                    )
                    self._learn(exchange)
            elif frame.code in (39, 40) and frame.is_oneway and frame.server == "broker":
                self.pushed["theirs"].append(frame.code)
                if frame.code == 39:
                    self._learn_check(frame.fields)
            else:
                await self._send(frame)
        await self._go_to(frames[-1].at_ms + 1_000)
        for connection, _ in self._wires.values():
            connection.connection_lost(None)
        await self._settle()
        return list(self.exchanges.values())

    async def _go_to(self, at_ms: int) -> None:
        while self.clock.now_ms() < at_ms:
            self.clock.set_ms(min(at_ms, self.clock.now_ms() + STEP_MS))
            if self.clock.now_ms() - self._sampled_ms >= SAMPLE_MS:
                self._sampled_ms = self.clock.now_ms()
                self.broker.parts.stats.sample(self._sampled_ms)  # normally a job of the scheduler
            await self._settle()

    async def _settle(self) -> None:
        for _ in range(TURNS + 1):
            await asyncio.sleep(0)
        await until(lambda: self._in_hand() == len(self.broker.parts.long_polls))
        for (server, number), (_, wire) in self._wires.items():
            for header, body in wire.take():
                self._take(server, number, header, body)

    def _in_hand(self) -> int:
        return sum(connection.requests_in_flight for connection, _ in self._wires.values())

    def _take(self, server: str, number: int, header: dict[str, Any], body: bytes) -> None:
        fields = header.get("extFields") or {}
        if not header["flag"] & 1:
            self.pushed["ours"].append(header["code"])
            if header["code"] == 39:
                self._checks.append(fields)
            return
        exchange = self.exchanges[server, number, header["opaque"]]
        exchange.ours = Answer(header["code"], fields, header.get("remark"), body)
        self._learn(exchange)

    async def _send(self, frame: Frame) -> None:
        if not frame.is_oneway:
            self.exchanges[frame.key] = Exchange(frame)
        connection, _ = self._wires.get((frame.server, frame.connection)) or self._connect(frame)
        data = self._bytes_of(frame)
        view = connection.get_buffer(len(data))
        while data:
            part = data[: len(view)]
            view[: len(part)] = part
            connection.buffer_updated(len(part))
            data, view = data[len(part) :], connection.get_buffer(-1)
        await self._settle()

    def _connect(self, frame: Frame) -> tuple[Connection, Wire]:
        frame_handler, dispatcher = None, Dispatcher(self._other.handlers())
        if frame.server == "broker":
            frame_handler, dispatcher = self._ingest, self.broker.parts.dispatcher
        elif frame.connection not in self._brokers:
            assert self.broker.namesrv is not None
            dispatcher = Dispatcher(self.broker.namesrv.handlers())
        connection = Connection(dispatcher, limits=RemotingLimits(), frame_handler=frame_handler)
        wire = Wire(50_000 + frame.connection)
        connection.connection_made(wire)
        self._wires[frame.server, frame.connection] = connection, wire
        return connection, wire

    def _bytes_of(self, frame: Frame) -> bytes:
        header = dict(frame.header)
        name = OFFSET_FIELDS.get(frame.code)
        if frame.server == "broker" and name is not None:
            theirs = int(frame.fields[name])
            changes = {name: str(self._offsets.get(theirs, theirs))}
            header["extFields"] = frame.fields | changes
        text = json.dumps(header, ensure_ascii=False).encode()
        length = 4 + len(text) + len(frame.body)
        return length.to_bytes(4, "big") + len(text).to_bytes(4, "big") + text + frame.body

    def _learn(self, exchange: Exchange) -> None:
        theirs, ours = exchange.theirs, exchange.ours
        if theirs is None or ours is None or "msgId" not in theirs.fields:
            return
        ids = (theirs.fields["msgId"].split(","), ours.fields.get("msgId", "").split(","))
        for their_id, our_id in zip(*ids, strict=False):
            if len(their_id) == len(our_id) == 32 and exchange.request.code != 370:
                self._offsets[decode_offset_id(their_id)[2]] = decode_offset_id(our_id)[2]

    def _learn_check(self, theirs: dict[str, str]) -> None:
        for ours in self._checks:
            if ours["msgId"] == theirs["msgId"]:
                self._offsets[int(theirs["commitLogOffset"])] = int(ours["commitLogOffset"])
