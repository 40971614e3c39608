"""Lock of a topic of undelivered messages at a broker: one request at a time sends them again.

    request A   lock --> sent before? --> send --> unlock
    request B        wait ...................... lock --> sent before? --> send --> unlock

The search for messages that were sent before and the sends are several requests, so without the
lock two runs could send a message twice. It is the lock that consumers of ordered messages take for
a queue, which Apache's brokers have, too. A broker has its locks in memory and drops one after
60 s, so what the lock protects must end before.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from duemq.client.admin.topic_page import READER_GROUP
from duemq.client.client import Client
from duemq.client.errors import ClientError, NoBroker, Unreachable
from duemq.client.routes import json_object
from duemq_common.codes import RequestCode
from duemq_common.request import Response

log = logging.getLogger(__name__)
HELD_S: Final = 50.0  # what the lock protects ends in this time
WAIT_S: Final = 10.0  # for a lock that another request has
LOOK_S: Final = 0.1


@asynccontextmanager
async def locked(client: Client, broker: str, topic: str) -> AsyncIterator[None]:
    """Hold the lock of a topic at a broker while the block is active.

    The block is cancelled with TimeoutError after `HELD_S`.

    Args:
        broker: Name of the broker that has the topic.
    Raises:
        ClientError: Another request has the lock; nothing was sent.
        NoBroker: The broker is not registered at the name server.
        Refused: The broker refused the request.
        Unreachable: The broker does not respond.
    """
    address = await client.master(broker)
    if not address:
        raise NoBroker(f"broker {broker} is no longer registered")
    body = _body(client.client_id + secrets.token_hex(8), topic)
    clock = asyncio.get_running_loop().time
    last_s = clock() + WAIT_S
    since_s = clock()
    while not _is_locked(await client.ask(address, RequestCode.LOCK_BATCH_MQ, {}, body), address):
        if clock() > last_s:
            text = f"another request sends messages of {topic} again now: repeat this one later"
            raise ClientError(text)
        await asyncio.sleep(LOOK_S)
        since_s = clock()
    try:
        async with asyncio.timeout_at(since_s + HELD_S):
            yield
    finally:
        try:
            await client.ask(address, RequestCode.UNLOCK_BATCH_MQ, {}, body)
        except ClientError as error:
            log.warning("%s has topic %s locked for up to 60 s: %s", address, topic, error)


def _body(owner: str, topic: str) -> bytes:
    """Return the body of a lock or unlock. The broker's name is left out: clients may not know it.

    Source: LockBatchRequestBody
    """
    queue = {"topic": topic, "brokerName": "", "queueId": 0}
    body = {"clientId": owner, "consumerGroup": READER_GROUP, "mqSet": [queue]}
    return msgspec.json.encode(body)


def _is_locked(response: Response, address: str) -> bool:
    try:
        return bool(json_object(response).get("lockOKMQSet"))
    except ValueError as error:
        raise Unreachable(f"the response of {address} is not one to a lock: {error}") from error
