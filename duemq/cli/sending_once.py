"""Sends of messages that may exist already: each unique id of a topic is stored once.

A message is skipped if it is pending, was delivered or was cancelled. DueMQ's brokers answer this
for many messages in one request: a message whose due time is in the future, by their clocks, cannot
have been stored other than as a pending one. For other messages, and on Apache's brokers, the key
index is queried.

A lost message may have its former record in the target's store, and another message of a Java
client's batch may have its id. So it exists only if the message that was sent for it does, or one
with its body.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from delayed_delivery.names import REPAIRED
from duemq.cli.message_file import FileMessage
from duemq.client.admin import Admin
from duemq.client.client import Client
from duemq.client.decisions import PendingDecisions
from duemq.client.errors import NoRoute, NotSent, Refused, Unsupported
from duemq.client.message import EPOCH, Message, MessageQueue, decompressed
from duemq.client.producer import Producer, SendResult
from duemq.client.routes import json_object
from duemq.net.view_names import TIMERS_VIEW
from duemq_common.bodies.histories import MessageHistory
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.topics import PENDING_TOPICS
from message_store.log.record import Record

SEND, EXISTS, NO_ID, REFUSED = "send", "exists", "no unique id", "refused"
UNKNOWN: Final = "unknown"
IN_FLIGHT_MAX: Final = 128
CONTENTS_MAX: Final = 100_000
PENDING, SCHEDULED = "pending", "scheduled"  # state and event of histories
OTHER: Final = "another message has its unique id"
STEP_MS: Final = 60_000  # maximum step of a broker's clock, relative to the client's, during a run
PERMANENT: Final[frozenset[int]] = frozenset(
    {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST}
)
"""Refusals of one message, after which others can be sent."""


class OnceSender:
    """Sender of messages to a cluster, each unless it exists there.

    Args:
        client: Client of the target.
    Attributes:
        refusals: Reason of each refused message, by topic and unique id.

    A message with the id of another one in the last `CONTENTS_MAX` messages is refused, unless both
    have the same body.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._decisions = PendingDecisions(client=client)
        self._producer = Producer(
            client=client, group="duemq_cli", retries=0, in_flight_max=IN_FLIGHT_MAX, timeout_s=30
        )
        self._is_apache = False
        self._offset_ms: int | None = None
        self.refusals: dict[tuple[str, str], str] = {}
        self._contents: dict[tuple[str, str], int] = {}  # hash, by topic and unique id
        self._admin = Admin(client=client)

    async def actions(self, messages: Sequence[FileMessage]) -> list[str]:
        """Return SEND, EXISTS, NO_ID or REFUSED for each message; a repeated message exists.

        Raises:
            RequestError, ConnectionError: A broker cannot find out whether a message exists.
        """
        actions = [SEND if each.unique_id else NO_ID for each in messages]
        by_topic: dict[str, dict[str, int]] = defaultdict(dict)
        lost: dict[tuple[str, str, int], int] = {}
        for index, each in enumerate(messages):
            if not each.unique_id:
                continue
            if each.is_lost:
                name = each.topic, each.unique_id, each.phys_offset
                if lost.setdefault(name, index) != index:
                    actions[index] = EXISTS
            elif self._is_of_another(each):
                self.refusals[each.topic, each.unique_id] = OTHER
                actions[index] = REFUSED
            elif by_topic[each.topic].setdefault(each.unique_id, index) != index:
                actions[index] = EXISTS
        for topic, indexes in by_topic.items():
            verdicts = await self._verdicts(topic, list(indexes))
            for unique_id, index in indexes.items():
                is_known = verdicts.get(unique_id, UNKNOWN) != UNKNOWN
                actions[index] = EXISTS if is_known else await self._stored_action(messages[index])
        for index in lost.values():
            actions[index] = await self._lost_action(messages[index])
        return actions

    async def _lost_action(self, message: FileMessage) -> str:
        """Return SEND, EXISTS or REFUSED for a lost message, from the histories of its id."""
        await self._verdicts(message.topic, [message.unique_id])
        if self._is_apache:
            return await self._stored_action(message)
        histories = await self._admin.message_history(message.unique_id, topic=message.topic)
        actions = {_action_by(each, message) for each in histories.messages}
        if EXISTS in actions:
            return EXISTS
        if REFUSED in actions or histories.more:
            self.refusals[message.topic, message.unique_id] = OTHER
            return REFUSED
        return SEND

    def _is_of_another(self, message: FileMessage) -> bool:
        """Return whether an earlier message with another body has the id of this one."""
        name, content = (message.topic, message.unique_id), hash((message.body, message.flag))
        first = self._contents.setdefault(name, content)
        if len(self._contents) > CONTENTS_MAX:
            del self._contents[next(iter(self._contents))]
        return first != content

    async def _verdicts(self, topic: str, unique_ids: list[str]) -> dict[str, str]:
        """Return what a cancel of each id of a topic would result in; on Apache's brokers none."""
        if self._is_apache:
            return {}
        try:
            results = await self._decisions.cancel(ids=unique_ids, topic=topic, dry_run=True)
        except Unsupported:
            self._is_apache = True
            return {}
        return {each.name: each.verdict for each in results}

    async def _stored_action(self, message: FileMessage) -> str:
        """Return EXISTS if the topic has a message, or an Apache broker has it as a pending one.

        REFUSED: the topic has another message with its id. Of a lost message, another one with its
        id proves nothing.
        """
        is_ahead, action = False, SEND
        if message.due_ms is not None and not self._is_apache:
            is_ahead = message.due_ms > await self._latest_ms() + STEP_MS
        topics = () if is_ahead else (message.topic,)
        for record in await self._records(topics, message.unique_id):
            body = _body_of(record)
            if not _is_other(message, record.properties, body, len(body)):
                return EXISTS
            if not message.is_lost:
                self.refusals[message.topic, message.unique_id] = OTHER
                action = REFUSED
        if not self._is_apache:
            return action
        for record in await self._records(PENDING_TOPICS, message.unique_id):
            mark = record.properties.get(REPAIRED)
            is_copy = not message.is_lost or mark == str(message.phys_offset)
            if is_copy and record.properties.get("REAL_TOPIC") == message.topic:
                return EXISTS
        return action

    async def _latest_ms(self) -> int:
        """Return the latest time of the brokers, whose clocks may differ from the client's."""
        if self._offset_ms is None:
            times: list[int] = []
            for _, address in await self.client.masters():
                view = await self.client.ask(address, RequestCode.GET_VIEW, {"view": TIMERS_VIEW})
                times.append(json_object(view)["now_ms"])
            self._offset_ms = max(times) - self.client.clock.now_ms()
        return self.client.clock.now_ms() + self._offset_ms

    async def _records(self, topics: Sequence[str], unique_id: str) -> list[Record]:
        records: list[Record] = []
        for topic in topics:
            for _, address in await self.client.masters():
                records += await self._admin.records_by_id(address, topic, unique_id)
        return records

    async def send_all(self, messages: Sequence[FileMessage]) -> list[str]:
        """Send messages; return SEND or REFUSED for each.

        Raises:
            ClientError: A broker does not respond; some messages may be stored, and the next call
                of `actions` finds them.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._outcome(each)) for each in messages]
        return [task.result() for task in tasks]

    async def _outcome(self, message: FileMessage) -> str:
        try:
            await self.send(message)
        except NotSent as error:
            # the cause: a broker that does not respond, or refuses for now
            raise (error.__cause__ or error) from None
        except (Refused, ValueError, OverflowError) as error:
            if isinstance(error, Refused) and error.code not in PERMANENT:
                raise
            self.refusals[message.topic, message.unique_id] = str(error)
            return REFUSED
        return SEND

    async def send(self, message: FileMessage) -> SendResult:
        """Send a message as a timer; the broker delivers it at once if it is due."""
        properties = message.properties | {"UNIQ_KEY": message.unique_id}
        if message.is_lost:
            properties[REPAIRED] = str(message.phys_offset)
        deliver_at = None
        if message.due_ms is not None:
            deliver_at = EPOCH + timedelta(milliseconds=message.due_ms)
        outgoing = Message(
            message.topic,
            message.body,
            deliver_at=deliver_at,
            flag=message.flag,
            message_id=message.unique_id,
        )
        queue = await self._queue(message)
        return await self._producer.send_with(outgoing, properties, queue=queue)

    async def _queue(self, message: FileMessage) -> MessageQueue:
        """Return the queue of the same number, or another one if the topic has fewer."""
        queues = (await self.client.route(message.topic)).write_queues
        if not queues:
            raise NoRoute(f"topic {message.topic} has no writable queue")
        same = (each for each in queues if each.queue_id == message.queue_id)
        return next(same, queues[message.queue_id % len(queues)])


def _action_by(history: MessageHistory, message: FileMessage) -> str:
    """Return the action that the history of a message with its id allows for a lost message."""
    is_present = history.state == PENDING or history.delivered_ms is not None
    if any(step.commit_log_offset == message.phys_offset for step in history.records):
        scheduled = sum(step.event == SCHEDULED for step in history.records)
        if scheduled > 1:  # messages of a batch with one id, which the broker takes as one
            return REFUSED
        return EXISTS if is_present else SEND
    is_other = _is_other(message, history.properties, history.body, history.body_bytes)
    return SEND if is_other else EXISTS


def _is_other(
    message: FileMessage, properties: Mapping[str, str], body: bytes, body_bytes: int
) -> bool:
    """Return whether a message with the id of one of a file is neither its copy nor sent for it.

    Args:
        body: The body, or its beginning.
        body_bytes: Size of the complete body in bytes.
    """
    if message.is_lost and REPAIRED in properties:
        return properties[REPAIRED] != str(message.phys_offset)
    contents = [message.body] + [message.stored_body] * message.is_lost
    return not any(len(content) == body_bytes and content.startswith(body) for content in contents)


def _body_of(record: Record) -> bytes:
    """Return the decompressed body of a record; a body that cannot be decompressed as it is."""
    try:
        return decompressed(record.body, record.sys_flag)
    except (ValueError, ImportError):
        return record.body
