"""Producer: sends messages to the queues of their topics.

    send --> route --> queue of a broker --> response
      ^        retried at another broker, with the same unique id     |
      +---------------------------------------------------------------+

A send that failed may be stored nevertheless, when only its response was lost. The producer then
sends the message again with the same unique id, so a consumer can recognize the second copy.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Final, Self

from duemq.auth.signature import Credentials
from duemq.client.client import Client
from duemq.client.errors import NoRoute, NotSent, Refused, Unreachable, Unsupported
from duemq.client.message import Message, MessageQueue
from duemq.client.routes import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, TopicRoute
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.clock import Clock
from duemq_common.errors import FrameError
from duemq_common.request import Response
from duemq_common.unique_ids import UniqueIds
from message_store.log.layout import SYS_COMPRESSED

NEW_TOPIC_QUEUES_TEXT: Final = str(NEW_TOPIC_QUEUES)
RETRIES: Final = 2
IN_FLIGHT_MAX: Final = 8_192
COMPRESSED_BYTES_MIN: Final = 4_096
ZLIB_LEVEL: Final = 5  # as Apache's clients
FIRST_VERSION_WITH_TIMERS: Final = 413  # 5.0.0: older brokers deliver a timer at once
AVOIDED_S: Final = 10.0  # a broker that failed gets no sends for this time if there are others
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


@dataclass(frozen=True, slots=True)
class SendResult:
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


class Producer:
    """Producer of messages; an async context manager.

    Args:
        namesrv, broker, tls, credentials, timeout_s, clock: As in `Client`.
        group: Name of the producer group.
        client: Client to share; then the arguments of a client are not used.
        retries: Number of further attempts after a failed one.
        in_flight_max: Maximum number of sends in flight; further sends wait.
        compressed_from: Size in bytes from which a body is compressed; 0: never.
    """

    def __init__(
        self,
        namesrv: str = "",
        *,
        group: str = "DUEMQ_PRODUCER",
        client: Client | None = None,
        broker: str = "",
        tls: ssl.SSLContext | bool | None = None,
        credentials: Credentials | None = None,
        timeout_s: float = 3.0,
        retries: int = RETRIES,
        in_flight_max: int = IN_FLIGHT_MAX,
        compressed_from: int = COMPRESSED_BYTES_MIN,
        clock: Clock | None = None,
    ) -> None:
        self._owns_client = client is None
        self.client = client or Client(
            namesrv,
            broker=broker,
            tls=tls,
            credentials=credentials,
            timeout_s=timeout_s,
            clock=clock,
        )
        self.group = group
        self._timeout_s, self._attempts = timeout_s, retries + 1
        self._in_flight, self._in_flight_max = 0, in_flight_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._compressed_from = compressed_from
        self._turns: dict[str, int] = {}
        self._avoided: dict[str, float] = {}
        own_ip = self.client.client_id.partition("@")[0]
        source = int.from_bytes(os.urandom(4))
        self._ids = UniqueIds(socket.inet_aton(own_ip), self.client.clock, source)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the sends in flight, then close."""
        while self._in_flight:
            await self._room(0)
        if self._owns_client:
            await self.client.close()

    # Sends.

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message; return when the broker has stored it.

        Args:
            queue: MessageQueue of the topic; None: the queues in turn, or by the sharding key.
        Raises:
            NotSent: The message was not stored by any attempt, or no response says so.
            Refused: The broker refused the message for good.
            Unsupported: The broker would deliver a timer at once.
            ValueError: The message cannot be sent as it is.
        """
        if self._in_flight >= self._in_flight_max:
            await self._room(self._in_flight_max - 1)
        self._in_flight += 1
        try:
            if not message.message_id:
                message.message_id = self._ids.next_id()
            body, sys_flag = self._compressed(message.body)
            fields = self._fields(message, sys_flag)
            return await self._attempt(message, fields, body, queue)
        finally:
            self._in_flight -= 1
            if self._waiting:
                self._waiting.popleft().set_result(None)

    async def _room(self, count: int) -> None:
        """Wait until at most `count` sends are in flight."""
        while self._in_flight > count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future in self._waiting:
                    self._waiting.remove(future)
                raise

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        if not self._compressed_from or len(body) < self._compressed_from:
            return body, 0
        smaller = zlib.compress(body, ZLIB_LEVEL)
        return (smaller, SYS_COMPRESSED) if len(smaller) < len(body) else (body, 0)

    def _fields(self, message: Message, sys_flag: int) -> dict[str, str]:
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
            "i": message.property_text({}),
            "j": "0",
            "k": "false",
            "m": "false",
        }

    async def _attempt(
        self, message: Message, fields: dict[str, str], body: bytes, queue: MessageQueue | None
    ) -> SendResult:
        last: Exception | None = None
        for attempt in range(self._attempts):
            chosen = queue
            try:
                route = self.client.cached_route(message.topic) if attempt == 0 else None
                if route is None:
                    route = await self.client.route(message.topic, refresh=attempt > 0)
                chosen = queue or self._queue(route, message)
                return await self._send_to(chosen, route, message, fields, body)
            except Refused as error:
                if error.code not in RETRIED:
                    raise
                last = error
            except (Unreachable, NoRoute) as error:
                last = error
            if chosen is not None:
                self._avoided[chosen.broker_name] = self._now_s() + AVOIDED_S
        raise NotSent(
            f"message {message.message_id} to topic {message.topic} was not stored in "
            f"{self._attempts} attempts: {last}",
            message.message_id,
        ) from last

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

    async def _send_to(
        self,
        queue: MessageQueue,
        route: TopicRoute,
        message: Message,
        fields: dict[str, str],
        body: bytes,
    ) -> SendResult:
        address = route.master(queue.broker_name)
        if not address:
            raise NoRoute(f"broker {queue.broker_name} of topic {queue.topic} has no master")
        client = self.client
        connection = client.connection(address) or await client.connect(address)
        if message.is_timer and connection.version < FIRST_VERSION_WITH_TIMERS:
            await self._check_timers(address)
        if not connection.is_writable:
            await connection.writable()
        fields["e"] = str(queue.queue_id)
        request = client.request(RequestCode.SEND_MESSAGE_V2, fields, body)
        try:
            response = await connection.call(request, self._timeout_s)
        except FrameError as error:
            raise ValueError(f"message {message.message_id} is too long: {error}") from error
        except (OSError, TimeoutError) as error:
            raise client.unreachable(address, error) from error
        if response.code not in STATUS:
            raise client.refusal(response, address, RequestCode.SEND_MESSAGE_V2)
        return _result(response, message, queue)

    async def _check_timers(self, address: str) -> None:
        """Ask a broker for its version before the first timer.

        Raises:
            Unsupported: The broker is older than 5.0.
        """
        await self.client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        connection = await self.client.connect(address)
        if connection.version < FIRST_VERSION_WITH_TIMERS:
            raise Unsupported(
                f"broker {address} is older than RocketMQ 5.0 and would deliver the message at "
                "once: give a level instead of delay or deliver_at"
            )


def _result(response: Response, message: Message, queue: MessageQueue) -> SendResult:
    fields = response.fields or {}
    queue_id = int(fields.get("queueId", queue.queue_id))
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return SendResult(
        STATUS[response.code],
        message.message_id,
        fields.get("msgId", ""),
        queue,
        int(fields.get("queueOffset", -1)),
        fields.get("recallHandle", ""),
    )
