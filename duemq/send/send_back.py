"""Consumer send-back (code 36): retry and dead letter messages. AbstractSendMessageProcessor.

message --> %RETRY%group, with delay level 3 + reconsume times
        --> %DLQ%group, after the maximum of retries or if the consumer requests it
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.configuration.config import BrokerConfig
from duemq.net import fields
from duemq.registry.groups import GroupConfig, GroupManager
from duemq.registry.internal_topics import check_readable
from duemq.registry.managers import Identity, Putter
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import DLQ_PREFIX, PERM_READ, PERM_WRITE, RETRY_PREFIX
from message_store.log.copies import add_copy, batch_for, next_reconsume_times, refusal
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Record
from message_store.replication.acknowledgement import not_confirmed

if TYPE_CHECKING:
    from message_store.store import MessageStore

FIRST_RETRY_LEVEL = 3
VERSION_WITH_RECONSUME_MAX = 121  # 3.4.9


class RetryPlan(Struct, frozen=True):
    """Destination of a message that was sent back.

    Attributes:
        level: Delay level; 0: no delay.
        dead: Whether `topic` is the dead letter topic.
    """

    topic: str
    level: int
    dead: bool


def plan_retry(group: str, reconsume_times: int, times_max: int, level: int) -> RetryPlan:
    """Return the destination of a message that could not be consumed.

    Args:
        reconsume_times: Number of earlier send-backs.
        times_max: Number of send-backs after which the message is a dead letter.
        level: Delay level requested by the consumer; 0: 3 + `reconsume_times`; negative: dead
            letter.
    """
    if level < 0 or reconsume_times >= times_max:
        return RetryPlan(DLQ_PREFIX + group, 0, dead=True)
    return RetryPlan(RETRY_PREFIX + group, level or FIRST_RETRY_LEVEL + reconsume_times, dead=False)


def retry_properties(record: Record, level: int) -> dict[str, str]:
    """Return the properties of the retry message, with `level` as delay level."""
    properties = dict(record.properties)
    properties.setdefault("RETRY_TOPIC", record.topic)
    address, port = record.store_host
    properties.setdefault("ORIGIN_MESSAGE_ID", encode_offset_id(address, port, record.phys_offset))
    properties["WAIT"] = "false"
    properties["DELAY"] = str(level)
    return properties


class SendBackProcessor:
    """Handler of code 36, CONSUMER_SEND_MSG_BACK.

    Args:
        sent_back: Counts one message of a topic and group.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        put: Putter,
        identity: Identity,
        sent_back: Callable[[str, str], None],
        config: Callable[[], BrokerConfig],
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._store, self._topics, self._groups = store, topics, groups
        self._put, self._identity = put, identity
        self._sent_back, self._config = sent_back, config

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, request: Request) -> Response:
        """Put a copy of the message at `offset` into the group's retry or dead letter topic.

        Raises:
            RequestError: The group or message does not exist, access is denied, or the copy was
                not stored and confirmed.
        """
        name = fields.text(request, "group")
        phys_offset = fields.long(request, "offset")
        level = fields.integer(request, "delayLevel")
        group = self._group(name)
        if group.retry_queues <= 0:
            return Response(fields={})
        record = self._record(phys_offset)
        self._records.check_record(request, record.topic, Action.SUB)
        await self._topic(RETRY_PREFIX + name, group.retry_queues)
        times_max = _times_max(request, group)
        retry = plan_retry(name, record.reconsume_times, times_max, level)
        queues = 1 if retry.dead else group.retry_queues
        if retry.dead:
            await self._topic(retry.topic, 1)
        await self._store_copy(record, retry, random.randrange(queues))
        self._sent_back(self._origin_topic(request, record), name)
        return Response(fields={})

    def _origin_topic(self, request: Request, record: Record) -> str:
        """Return the topic for statistics: `originTopic` if it exists, else the record's topic."""
        origin = request.fields.get("originTopic", "")
        return origin if self._topics.find(origin) is not None else record.topic

    async def _store_copy(self, record: Record, retry: RetryPlan, queue_id: int) -> None:
        batch = batch_for(record)
        add_copy(
            batch,
            record,
            topic_index=self._store.topics.add(retry.topic),
            queue_id=queue_id,
            properties=retry_properties(record, retry.level),
            store_host=self._identity.host,
            reconsume_times=next_reconsume_times(record),
        )
        await self._put(batch)
        fault = refusal(batch)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the message was not stored: {fault}")
        # The copy has WAIT=false, as in Apache. The consumer discards the message after the
        # response, so the copy must be confirmed before it.
        if missing := await self._store.wait_confirmed(self._store.max_offset):
            raise not_confirmed("the message was sent back", missing)

    def _group(self, name: str) -> GroupConfig:
        group = self._groups.find_or_create(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}"
            )
        if not self._config().permission & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._identity.broker_name}] sending message is forbidden",
            )
        return group

    async def _topic(self, name: str, queues: int) -> None:
        topic = await self._topics.ensure(name, queues=queues, perm=PERM_READ | PERM_WRITE)
        if not topic.perm & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )

    def _record(self, phys_offset: int) -> Record:
        """Return the message at a physical offset from a request.

        Raises:
            RequestError: There is no message, or clients may not read its topic.
        """
        try:
            record = self._store.read_queued(phys_offset)
        except RecordUnreadable as fault:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {phys_offset}: {fault}"
            ) from fault
        check_readable(record.topic)
        return record


def _times_max(request: Request, group: GroupConfig) -> int:
    times_max = request.fields.get("maxReconsumeTimes")
    if not times_max or request.version < VERSION_WITH_RECONSUME_MAX:
        return group.retry_times_max
    return fields.integer(request, "maxReconsumeTimes")
