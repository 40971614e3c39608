"""Sends with an idempotency key: a repeated request does not store the message again.

    Idempotency-Key --> unique id (UNIQ_KEY) --> table of this process: in progress, or stored
                                             \\-> brokers: is a message with this id in the log?
                                             \\-> one attempt to send it, to the queue of the id

The unique id is a function of account, topic and key, so every server computes the same one, also
after a restart. DueMQ's brokers search their whole log for it, the part without index included, so
a message that was stored before the search began is found: pending, delivered or cancelled.

A message may be stored twice only

- by two HTTP servers that get the same key at the same time: both search before one of them sends;
- by a send whose response was lost, if its bytes reach the broker after the searches of a repeat;
- after retention has removed the message from the log, or its topic has moved to other brokers;
- at Apache's brokers, whose index does not find pending messages, after a restart of this process.

Both copies have the same unique id.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import msgspec

from duemq.auth.signature import Credentials
from duemq.client import MessageQueue, NoRoute, NotSent, SendResult
from duemq.http.endpoints import JsonObject, invalid
from duemq.http.problems import Problem
from duemq.http.sent import NewMessage
from duemq.http.sessions import AccountSession
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import bytes_of

HEADER: Final = "idempotency-key"
FINGERPRINT: Final = "IDEMPOTENCY_FINGERPRINT"
KEY_MAX: Final = 255
ENTRIES_MAX: Final = 20_000
SEARCH_TIMEOUT_S: Final = 60.0
NO_INDEX: Final = -1
_Sender = tuple[Credentials | None, str]
"""Account and unique id."""


@dataclass(frozen=True, slots=True)
class OnceResult:
    """Stored message, and whether an earlier request stored it."""

    result: SendResult
    repeated: bool


@dataclass(slots=True)
class _Attempt:
    """Send of one unique id.

    Attributes:
        fingerprint: Digest of the request.
        task: Sends the message; done: has sent it.
    """

    fingerprint: str
    task: asyncio.Task[OnceResult]


class OnceSends:
    """Sends with keys of one process."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[_Sender, _Attempt] = OrderedDict()
        self._uncertain: OrderedDict[str, None] = OrderedDict()

    async def send(
        self,
        session: AccountSession,
        account: Credentials | None,
        new: NewMessage,
        key: str,
        index: int = NO_INDEX,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> OnceResult:
        """Send a message unless an earlier request with its key has stored it.

        Args:
            account: Account of the request. In a process whose brokers check the secrets, an
                attempt counts for requests with the same secret only.
            index: Number of the message in its batch.
            more: Properties that are not part of the message: a repeat may have others.
        Raises:
            Problem: The key was used for another message.
            ClientError: The message was not stored, or it is not known whether it was.
        """
        access_key = account.access_key if account is not None else ""
        unique_id = unique_id_of(access_key, new.topic, key, index)
        fingerprint = fingerprint_of(new)
        sender = (account, unique_id)
        attempt = self._attempts.get(sender)
        if attempt is not None:
            check_same(attempt.fingerprint, fingerprint)
            return replace(await asyncio.shield(attempt.task), repeated=True)
        # A task, so that a caller that closes its connection does not end the send.
        properties = {**more, FINGERPRINT: fingerprint}
        task = asyncio.create_task(self._send(session, new, unique_id, properties), name="send")
        self._attempts[sender] = _Attempt(fingerprint, task)
        task.add_done_callback(lambda _: self._done(sender, task))
        return await asyncio.shield(task)

    def _done(self, sender: _Sender, task: asyncio.Task[OnceResult]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._attempts[sender]
            self._uncertain[sender[1]] = None
            if len(self._uncertain) > ENTRIES_MAX:
                self._uncertain.popitem(last=False)
            return
        for old in list(self._attempts)[: max(len(self._attempts) - ENTRIES_MAX, 0)]:
            if self._attempts[old].task.done():
                del self._attempts[old]

    async def _send(
        self, session: AccountSession, new: NewMessage, unique_id: str, properties: dict[str, str]
    ) -> OnceResult:
        message = new.message()
        message.message_id = unique_id
        # The broker reads requests of a connection in order and appends the sends of a turn of its
        # loop at the end of the turn: the second search begins in a later turn than a send before.
        for _ in range(2 if unique_id in self._uncertain else 1):
            stored = await _stored(session, new.topic, unique_id)
            if stored is not None:
                check_same(stored["properties"].get(FINGERPRINT, ""), properties[FINGERPRINT])
                return OnceResult(_result(stored, unique_id), repeated=True)
        queue = await _queue(session, new, unique_id)
        result = await session.keyed_producer.send_with(message, properties, queue=queue)
        self._uncertain.pop(unique_id, None)
        return OnceResult(result, repeated=False)


def unique_id_of(account: str, topic: str, key: str, index: int = NO_INDEX) -> str:
    """Return the unique id of a key: 96 bits of a digest, and the time of the id as zero.

    Apache's tools search for an id from its time on, in ms since the start of the month.
    """
    digest = hashlib.sha256(msgspec.json.encode([account, topic, key, index])).digest()
    return (digest[:10] + bytes(4) + digest[10:12]).hex().upper()


def fingerprint_of(new: NewMessage) -> str:
    """Return the digest of a message."""
    return hashlib.sha256(msgspec.json.encode(new)).hexdigest()[:32]


def key_of(headers: Mapping[str, str]) -> str:
    """Return the idempotency key of a request; empty if it has none.

    Raises:
        Problem: The key is empty, too long, or not printable ASCII.
    """
    key = headers.get(HEADER)
    if key is None:
        return ""
    if not 0 < len(key) <= KEY_MAX or not (key.isascii() and key.isprintable()):
        raise invalid(f"the Idempotency-Key needs 1 to {KEY_MAX} printable ASCII characters")
    return key


def check_same(stored: str, given: str) -> None:
    """Raise a problem if a key was used for another message."""
    if stored != given:
        title = "The idempotency key was used for another message"
        raise Problem(422, "key-reused", title, "give each message a key of its own")


async def _stored(session: AccountSession, topic: str, unique_id: str) -> JsonObject | None:
    """Return the stored message with a unique id; None if no broker has it."""
    fields, body = {"topic": topic}, msgspec.json.encode({"name": unique_id})
    code = RequestCode.FIND_MESSAGE_OF_TOPIC
    for name, address in await session.client.masters():
        response = await session.client.call(
            address, code, fields, body, timeout_s=SEARCH_TIMEOUT_S
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # one of Apache's
            stored = await _stored_at_apache(session, topic, unique_id)
            if stored is not None:
                return stored
            continue
        if response.code != ResponseCode.SUCCESS:
            raise session.client.refusal(response, address, code)
        for message in msgspec.json.decode(bytes_of(response))["messages"]:
            if message["unique_key"] == unique_id:
                return {**message, "broker": name or address}
    return None


async def _stored_at_apache(
    session: AccountSession, topic: str, unique_id: str
) -> JsonObject | None:
    try:
        messages = await session.admin.messages_by_id(topic, unique_id)
    except NoRoute:
        return None
    for message in messages:
        return {
            "broker": message.queue.broker_name,
            "topic": message.topic,
            "queue_id": message.queue.queue_id,
            "offset_message_id": message.offset_message_id,
            "properties": dict(message.properties),
        }
    return None


def _result(stored: JsonObject, unique_id: str) -> SendResult:
    queue = MessageQueue(stored["topic"], stored["broker"], stored["queue_id"] or 0)
    return SendResult("stored", unique_id, stored["offset_message_id"], queue, -1)


async def _queue(session: AccountSession, new: NewMessage, unique_id: str) -> MessageQueue | None:
    """Return the queue of a unique id, so that all servers choose the same broker."""
    if new.sharding_key:
        return None  # the producer chooses by it
    try:
        queues = (await session.client.route(new.topic)).write_queues
    except NoRoute as error:
        raise NotSent(str(error), unique_id) from error
    return queues[zlib.crc32(unique_id.encode()) % len(queues)] if queues else None
