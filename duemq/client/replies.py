"""Request and reply: a message whose consumer answers to the producer's connection.

Requester --request--> broker --> consumer --reply--> broker --push (326)--> Requester
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Unpack

from duemq.client.connection import ServerConnection
from duemq.client.errors import ClientError, Unsupported
from duemq.client.message import Message, ReceivedMessage, decompressed
from duemq.client.producer import Producer, ProducerOptions, SendResult
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from message_store.log.properties import decode_properties

CORRELATION_ID, REPLY_TO, TTL = "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"
REPLY_TIMEOUT_S: Final = 3.0


class NoReply(ClientError):
    """No consumer replied in time; the request may be handled nevertheless."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply to a request."""

    body: bytes
    properties: Mapping[str, str]


class Requester(Producer):
    """Producer of requests that wait for a reply; see `Producer` for the arguments.

    Source: DefaultMQProducer.request
    """

    def __init__(self, namesrv: str = "", **options: Unpack[ProducerOptions]) -> None:
        super().__init__(namesrv, **options)
        self._requests: dict[str, asyncio.Future[Reply]] = {}
        self.client.heartbeats.add_producer(self.group)
        self.client.handle(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._replied)

    async def _end_work(self) -> None:
        """Wait for the sends in flight, and unregister the group."""
        await super()._end_work()
        await self.client.heartbeats.remove(producer=self.group)

    async def request(self, message: Message, *, timeout_s: float = REPLY_TIMEOUT_S) -> Reply:
        """Send a message and return the reply of its consumer.

        Raises:
            NoReply: There is no reply in time.
            NotSent, Refused: As `send`.
        """
        route = await self.client.route(message.topic)
        await self.client.heartbeats.before_use(route.masters())
        correlation = os.urandom(16).hex()
        properties = {
            CORRELATION_ID: correlation,
            REPLY_TO: self.client.client_id,
            TTL: str(int(timeout_s * 1_000)),
        }
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._requests[correlation] = future
        try:
            async with asyncio.timeout(timeout_s):
                await self.send_with(message, properties)
                return await future
        except TimeoutError as error:
            if future.done() and not future.cancelled():
                return future.result()  # a late loop reads the reply in the turn of the timeout
            raise NoReply(f"no reply to {message.message_id} within {timeout_s:g} s") from error
        finally:
            del self._requests[correlation]

    def _replied(self, request: Request, _: ServerConnection) -> Response:
        """Pass a pushed reply to its request. ClientRemotingProcessor.receiveReplyMessage"""
        properties = decode_properties(request.fields.get("properties", "").encode())
        body = decompressed(request.body, int(request.fields.get("sysFlag", "0")))
        future = self._requests.get(properties.get(CORRELATION_ID, ""))
        if future is not None and not future.done():
            future.set_result(Reply(body, properties))
        return Response()


async def send_reply(producer: Producer, request: ReceivedMessage, body: bytes) -> SendResult:
    """Reply to a request that was consumed.

    Raises:
        ValueError: The message does not ask for a reply.
        Refused: The requester is not connected any more.
        Unsupported: The broker does not support replies.
    Source: MessageUtil.createReplyMessage
    """
    properties = request.properties
    if CORRELATION_ID not in properties or REPLY_TO not in properties:
        raise ValueError(f"message {request.message_id} does not ask for a reply")
    cluster = properties.get("CLUSTER")
    if cluster is None:
        raise Unsupported(f"message {request.message_id} does not name its cluster")
    copied = {name: properties[name] for name in (CORRELATION_ID, REPLY_TO, TTL)}
    message = Message(f"{cluster}_REPLY_TOPIC", body)
    return await producer.send_with(
        message, copied | {"MSG_TYPE": "reply"}, code=RequestCode.SEND_REPLY_MESSAGE_V2
    )
