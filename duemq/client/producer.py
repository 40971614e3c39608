"""Producer: sends messages to the queues of their topics.

    send --> route --> queue of a broker --> response
      ^        retried at another broker, with the same unique id     |
      +---------------------------------------------------------------+

Without another broker, a busy one gets the message again after a pause.

A send that failed may be stored nevertheless, when only its response was lost. The producer then
sends the message again with the same unique id, so a consumer can recognize the second copy.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Final, Unpack

import msgspec

from duemq.client.client import FIRST_VERSION_5
from duemq.client.connection import ServerConnection
from duemq.client.errors import NoRoute, NotSent, Refused, Unreachable, Unsupported
from duemq.client.message import Message, MessageQueue
from duemq.client.role import ClientOptions, ClientRole
from duemq.client.routes import NEW_TOPIC_QUEUES, TopicRoute
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import FrameError
from duemq_common.request import Response
from duemq_common.topics import TEMPLATE_TOPIC
from duemq_common.unique_ids import UniqueIds
from message_store.log.layout import BATCH_ENTRY_HEAD, PROPERTIES_LENGTH, SYS_COMPRESSED

NEW_TOPIC_QUEUES_TEXT: Final = str(NEW_TOPIC_QUEUES)
RETRIES: Final = 2
IN_FLIGHT_MAX: Final = 8_192
COMPRESSED_BYTES_MIN: Final = 4_096
ZLIB_LEVEL: Final = 5  # as Apache's clients
AVOIDED_S: Final = 10.0  # a broker that failed gets no sends for this time if there are others
NO_PROPERTIES: Final[Mapping[str, str]] = {}
STATUS: Final[dict[int, str]] = {
    ResponseCode.SUCCESS: "stored",
    ResponseCode.FLUSH_DISK_TIMEOUT: "stored, not yet on the disk",
    ResponseCode.SLAVE_NOT_AVAILABLE: "stored, no replica",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored, not yet on a replica",
}
RETRIED: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)
"""Refusals after which another broker may accept the message. DefaultMQProducer"""
BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Refusals after which the same broker may accept the message soon."""
BUSY_PAUSE_S: Final = 0.1  # before the second attempt at a busy broker; twice that before the third


class SendResult(msgspec.Struct, frozen=True):
    """Stored message.

    Attributes:
        status: `stored`, or what is missing: the disk or a replica.
        message_id: Unique id.
        offset_message_id: Address of the broker and log offset.
        queue: MessageQueue of the message, where a delayed message will be delivered.
        queue_offset: Position of the stored record in its queue; a delayed message gets another one
            when it is delivered.
        recall_handle: Handle that cancels a timer; empty: none.
    """

    status: str
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str = ""


class ProducerOptions(ClientOptions, total=False):
    """Arguments of `Producer` by their names."""

    group: str
    retries: int
    in_flight_max: int
    compressed_from: int


class Producer(ClientRole):
    """Producer of messages; an async context manager.

    Args:
        namesrv, options: As in `ClientRole`.
        group: Name of the producer group.
        retries: Number of further attempts after a failed one.
        in_flight_max: Maximum number of sends in flight; further sends wait.
        compressed_from: Size in bytes from which a body is compressed; 0: never.
    """

    def __init__(
        self,
        namesrv: str = "",
        *,
        group: str = "DUEMQ_PRODUCER",
        retries: int = RETRIES,
        in_flight_max: int = IN_FLIGHT_MAX,
        compressed_from: int = COMPRESSED_BYTES_MIN,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(namesrv, **options)
        self.group = group
        self._attempts = retries + 1
        self._in_flight, self._in_flight_max = 0, in_flight_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._compressed_from = compressed_from
        self._turns: dict[str, int] = {}
        self._avoided: dict[str, float] = {}
        own_ip = self.client.client_id.partition("@")[0]
        source = int.from_bytes(os.urandom(4))
        self._ids = UniqueIds(socket.inet_aton(own_ip), self.client.clock, source)

    async def _end_work(self) -> None:
        """Wait for the sends in flight."""
        while self._in_flight:
            await self._room(0)
        self._wake_next()  # a send that waits gets the turn that this wait had

    # Sends.

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message; return when the broker has stored it.

        Args:
            queue: Queue of the topic; None: the queues in turn, or by the sharding key.
        Raises:
            NotSent: The message was not stored by any attempt, or no response says so.
            Refused: The broker refused the message for good.
            Unsupported: The broker would deliver a timer at once.
            ValueError: The message cannot be sent as it is.
        """
        return await self.send_with(message, NO_PROPERTIES, queue=queue)

    async def send_with(
        self,
        message: Message,
        properties: Mapping[str, str],
        *,
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send a message with properties and flags of the protocol; see `send`.

        Args:
            properties: Properties in addition to those of the message.
            sys_flag: Bits of the system flag.
            code: Code of the request.
        """
        if not message.message_id:
            message.message_id = self._ids.next_id()
        body, compressed = self._compressed(message.body)
        text = message.property_text(properties)
        fields = self._fields(message, text, sys_flag | compressed)
        response, stored_in = await self._send(code, message, fields, body, queue)
        return _result(response, message.message_id, stored_in)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request, to one queue and in order.

        Apache 5.0 to 5.4 gives all messages of a batch one unique id when they are read.

        Raises:
            ValueError: The messages have different topics, a delay or a priority, or are too long
                together.
            NotSent, Refused: As `send`, for all of them.
        """
        return await self.send_batch_with(messages, [NO_PROPERTIES] * len(messages), queue=queue)

    async def send_batch_with(
        self,
        messages: Sequence[Message],
        properties: Sequence[Mapping[str, str]],
        *,
        queue: MessageQueue | None = None,
    ) -> list[SendResult]:
        """Send messages with further properties of each in one request; see `send_batch`."""
        if not messages:
            return []
        first = messages[0]
        if any(each.topic != first.topic for each in messages):
            raise ValueError("the messages of a batch have different topics: send one batch each")
        if any(each.is_timer or each.level for each in messages):
            raise ValueError("a batch cannot contain delayed messages: send them one by one")
        if any(each.priority is not None for each in messages):
            raise ValueError("a batch goes to one queue, so its messages cannot have priorities")
        for each in messages:
            each.message_id = each.message_id or self._ids.next_id()
        body = b"".join(starmap(_batch_entry, zip(messages, properties, strict=True)))
        text = f"WAIT\x01{'true' if all(each.wait_stored for each in messages) else 'false'}\x02"
        fields = self._fields(first, text, 0) | {"m": "true"}
        response, stored_in = await self._send(
            RequestCode.SEND_BATCH_MESSAGE, first, fields, body, queue
        )
        ids = (response.fields or {}).get("msgId", "").split(",")
        first_result = _result(response, first.message_id, stored_in)
        return [
            msgspec.structs.replace(
                first_result,
                message_id=each.message_id,
                offset_message_id=ids[index] if len(ids) == len(messages) else "",
                queue_offset=first_result.queue_offset + index,
            )
            for index, each in enumerate(messages)
        ]

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without a response: fast, and it may be lost.

        Raises:
            NotSent: No broker can be reached.
            Unsupported: The broker would deliver a timer at once.
        """
        if not message.message_id:
            message.message_id = self._ids.next_id()
        body, sys_flag = self._compressed(message.body)
        fields = self._fields(message, message.property_text(NO_PROPERTIES), sys_flag)
        try:
            route = await self.client.route(message.topic)
            chosen = queue or self._queue(route, message)
            fields["e"] = str(chosen.queue_id)
            address = route.master(chosen.broker_name)
            connection = await self._connect(chosen, address, message)
            request = self.client.request(RequestCode.SEND_MESSAGE_V2, fields, body)
            connection.send_oneway(request)
        except (OSError, NoRoute) as error:
            text = f"message {message.message_id} to topic {message.topic} was not sent: {error}"
            raise NotSent(text, message.message_id) from error

    async def _send(
        self,
        code: int,
        message: Message,
        fields: dict[str, str],
        body: bytes,
        queue: MessageQueue | None,
    ) -> tuple[Response, MessageQueue]:
        """Return the response to a send and its queue; wait while many are in flight.

        Raises:
            NotSent, Refused, Unsupported: As `send`.
        """
        if self._in_flight >= self._in_flight_max:
            await self._room(self._in_flight_max - 1)
        self._in_flight += 1
        client = self.client
        last: Exception | None = None
        busy: tuple[str, ...] = ()  # brokers
        try:
            for attempt in range(self._attempts):
                chosen, address = queue, ""
                try:
                    route = client.cached_route(message.topic)
                    if route is None:
                        route = await client.route(message.topic)
                    chosen = queue or self._queue(route, message)
                    if chosen.broker_name in busy:
                        await asyncio.sleep(BUSY_PAUSE_S * attempt)
                    fields["e"] = str(chosen.queue_id)
                    address = route.master(chosen.broker_name)
                    connection = client.connection(address)
                    if connection is None or not self._is_ready(connection, message):
                        connection = await self._connect(chosen, address, message)
                    request = client.request(code, fields, body)
                    response = await connection.call(request, client.timeout_s)
                    if response.code in STATUS:
                        return response, chosen
                    raise client.refusal(response, address, code)
                except Refused as error:
                    if error.code not in RETRIED:
                        raise
                    last = error
                    if chosen is not None and error.code in BUSY:
                        busy += (chosen.broker_name,)
                except FrameError as error:
                    raise ValueError(
                        f"message {message.message_id} is too long: {error}"
                    ) from error
                except (Unreachable, NoRoute) as error:
                    last = error
                except (OSError, TimeoutError) as error:
                    last = client.unreachable(address, error)
                client.expire_route(message.topic)
                if chosen is not None:
                    self._avoided[chosen.broker_name] = self._now_s() + AVOIDED_S
        finally:
            self._in_flight -= 1
            if self._waiting:
                self._wake_next()
        raise self._not_confirmed(message, last) from last

    def _not_confirmed(self, message: Message, last: Exception | None) -> NotSent:
        text = f"message {message.message_id} to topic {message.topic} was not confirmed in "
        return NotSent(f"{text}{self._attempts} attempts: {last}", message.message_id)

    async def _room(self, count: int) -> None:
        """Wait until at most `count` sends are in flight."""
        while self._in_flight > count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future.cancelled():
                    if future in self._waiting:
                        self._waiting.remove(future)
                else:
                    self._wake_next()  # it does not use its turn
                raise

    def _wake_next(self) -> None:
        """Wake the first waiting send; one that was cancelled in this turn no longer waits."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        if not self._compressed_from or len(body) < self._compressed_from:
            return body, 0
        smaller = zlib.compress(body, ZLIB_LEVEL)
        return (smaller, SYS_COMPRESSED) if len(smaller) < len(body) else (body, 0)

    def _fields(self, message: Message, text: str, sys_flag: int) -> dict[str, str]:
        """Return the header of a send; its queue `e` is set later. SendMessageRequestHeaderV2"""
        return {
            "a": self.group,
            "b": message.topic,
            "c": TEMPLATE_TOPIC,
            "d": NEW_TOPIC_QUEUES_TEXT,
            "e": "",
            "f": str(sys_flag),
            "g": str(self.client.clock.now_ms()),
            "h": str(message.flag),
            "i": text,
            "j": "0",
            "k": "false",
            "m": "false",
        }

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _queue(self, route: TopicRoute, message: Message) -> MessageQueue:
        """Return the queue of a message: by its sharding key, or the next one.

        Raises:
            NoRoute: The topic has no writable queue.
        """
        queues = route.write_queues
        if not queues:
            raise NoRoute(f"topic {message.topic} has no writable queue")
        if message.sharding_key:
            return queues[zlib.crc32(message.sharding_key.encode()) % len(queues)]
        turn = self._turns.get(message.topic, -1) + 1
        if self._avoided:
            now_s = self._now_s()
            self._avoided = {name: s for name, s in self._avoided.items() if s > now_s}
            for step in range(len(queues)):
                if queues[(turn + step) % len(queues)].broker_name not in self._avoided:
                    turn += step
                    break
        self._turns[message.topic] = turn
        return queues[turn % len(queues)]

    def _is_ready(self, connection: ServerConnection, message: Message) -> bool:
        """Return whether a message can be sent now."""
        has_timers = connection.version >= FIRST_VERSION_5 or not message.is_timer
        return has_timers and connection.is_writable

    async def _connect(
        self, queue: MessageQueue, address: str, message: Message
    ) -> ServerConnection:
        """Return a connection to the broker of a queue that can be written.

        Raises:
            NoRoute: The broker has no master.
            Unreachable: The broker cannot be reached.
            Unsupported: The broker would deliver a timer at once.
        """
        if not address:
            raise NoRoute(f"broker {queue.broker_name} of topic {queue.topic} has no master")
        connection = self.client.connection(address) or await self.client.connect(address)
        if message.is_timer and await self.client.version(address) < FIRST_VERSION_5:
            raise Unsupported(
                f"broker {address} is older than RocketMQ 5.0 and would deliver the message at "
                "once: give a level instead of delay or deliver_at"
            )
        if not connection.is_writable:
            await connection.writable()
        return connection


def _result(response: Response, message_id: str, queue: MessageQueue) -> SendResult:
    fields = response.fields or {}
    queue_id = int(fields.get("queueId", queue.queue_id))
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return SendResult(
        STATUS[response.code],
        message_id,
        fields.get("msgId", ""),
        queue,
        int(fields.get("queueOffset", -1)),
        fields.get("recallHandle", ""),
    )


def _batch_entry(message: Message, properties: Mapping[str, str]) -> bytes:
    """Return a message of a batch body. MessageDecoder.encodeMessage"""
    text = message.property_text(properties).encode()
    try:
        length = PROPERTIES_LENGTH.pack(len(text))
    except struct.error as error:
        raise ValueError(f"the properties have {len(text)} bytes, which is too long") from error
    size = BATCH_ENTRY_HEAD.size + len(message.body) + len(length) + len(text)
    head = BATCH_ENTRY_HEAD.pack(size, 0, 0, message.flag, len(message.body))
    return head + message.body + length + text
