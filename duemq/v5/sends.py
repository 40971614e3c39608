"""Handlers of SendMessage and RecallMessage.

Source: SendMessageActivity, RecallMessageActivity
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from duemq.registry.topic_config import NO_LITE_TOPICS, TopicConfig
from duemq.send.decoded_sends import DecodedSends
from duemq.send.send_header import PRIORITY
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.cluster import V5Cluster
from duemq.v5.config import V5Config
from duemq.v5.context import CallContext
from duemq.v5.messages import RESERVED, message_types
from duemq.v5.permissions import check_writable
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error, code_of, status, status_of_all, successful
from duemq.v5.topic_types import check_type
from duemq.v5.transaction_id import transaction_id
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.recall_handle import HandleError, decode_handle
from duemq_common.request import Request, Response
from duemq_common.text import java_hash
from duemq_common.topics import TEMPLATE_TOPIC
from message_store.layout import SYS_COMPRESSED, SYS_PREPARED
from message_store.log.properties import ENTRY_END, NAME_END

USER_PROPERTIES_MAX: Final = 128  # userPropertyMaxNum
USER_PROPERTY_BYTES_MAX: Final = 16 << 10  # maxUserPropertySize
RECOVERY_S_MAX: Final = 3_600  # maxTransactionRecoverySecond
MESSAGES_MAX: Final = 1_024  # per call
_GENERATOR: Final = 2_862_933_555_777_941_757  # multiplier of Guava's linear congruential generator
_BUCKET_SCALE: Final = float(1 << 31)


class SendCalls:
    """Handlers of SendMessage and RecallMessage.

    Args:
        sends: Append path of messages.
        find_topic: Returns the configuration of a topic; None if the topic does not exist.
    """

    def __init__(
        self,
        requests: BrokerRequests,
        sends: DecodedSends,
        find_topic: Callable[[str], TopicConfig | None],
        config: Callable[[], V5Config],
        clock: Clock,
        cluster: V5Cluster,
    ) -> None:
        self._requests, self._sends, self._find_topic = requests, sends, find_topic
        self._config, self._clock, self._cluster = config, clock, cluster

    async def send(
        self, context: CallContext, client: V5Client, request: api.SendMessageRequest
    ) -> api.SendMessageResponse:
        """Append the messages of a call."""
        requests = self.requests_of(context, client, request)
        return self.send_response(request, await asyncio.gather(*map(self._sends.send, requests)))

    def requests_of(
        self, context: CallContext, client: V5Client, request: api.SendMessageRequest
    ) -> list[Request]:
        """Return the requests that append the messages of a call, which are checked.

        Raises:
            V5Error: The call is invalid, or the account has no permission.
        """
        messages = request.messages
        if not messages:
            raise V5Error(v2.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MESSAGES_MAX:
            raise V5Error(v2.TOO_MANY_REQUESTS, f"a call can have at most {MESSAGES_MAX} messages")
        name = checks.topic_of(messages[0].topic)
        with self._requests.permission_first(
            context, client, RequestCode.SEND_MESSAGE, {"topic": name}
        ):
            topic = self._topic(name)
            if any(each.topic != messages[0].topic for each in messages[1:]):
                raise V5Error(v2.MESSAGE_CORRUPTED, "topic in message is not same")
            checked = [self._fields(context, topic, each) for each in messages]
            check_writable(topic, self._config().permission)
        return [
            self._requests.request(context, client, RequestCode.SEND_MESSAGE, fields, message.body)
            for message, fields in zip(messages, checked, strict=True)
        ]

    def send_response(
        self, request: api.SendMessageRequest, responses: Sequence[Response]
    ) -> api.SendMessageResponse:
        """Return the response to a call from the broker's responses to its messages."""
        response = api.SendMessageResponse()
        response.entries.extend(map(_entry, request.messages, responses))
        response.status.CopyFrom(status_of_all(each.status for each in response.entries))
        if len(response.entries) == 1 and response.status.code != v2.OK:
            response.status.CopyFrom(response.entries[0].status)
        return response

    async def recall(
        self, context: CallContext, client: V5Client, request: api.RecallMessageRequest
    ) -> api.RecallMessageResponse:
        """Cancel a delayed message, at the broker that has it."""
        name = checks.topic_of(request.topic)
        fields = {"topic": name, "recallHandle": request.recall_handle, "producerGroup": name}
        code = RequestCode.RECALL_MESSAGE
        response = await self._recall_elsewhere(context, client, fields)
        if response is None:
            self._check_recall(context, client, name)
            response = await self._requests.call(context, client, code, fields)
        message_id = (successful(response).fields or {}).get("msgId", "")
        return api.RecallMessageResponse(status=status(v2.OK), message_id=message_id)

    async def _recall_elsewhere(
        self, context: CallContext, client: V5Client, fields: dict[str, str]
    ) -> Response | None:
        """Return the response of the broker that issued a handle; None: this broker, or unknown."""
        try:
            broker_name = decode_handle(fields["recallHandle"]).broker_name
        except HandleError:
            return None  # this broker refuses it
        if self._cluster.is_here(broker_name):
            return None
        request = self._requests.request(context, client, RequestCode.RECALL_MESSAGE, fields)
        return await self._cluster.forward(fields["topic"], broker_name, request)

    def _check_recall(self, context: CallContext, client: V5Client, name: str) -> None:
        with self._requests.permission_first(
            context, client, RequestCode.RECALL_MESSAGE, {"topic": name}
        ):
            if self._config().type_check:
                check_type(self._topic(name).attributes, v2.DELAY, v2.PRIORITY)

    def _topic(self, name: str) -> TopicConfig:
        topic = self._find_topic(name)
        if topic is None:
            text = f"No topic route info in name server for the topic: {name}"
            raise V5Error(v2.TOPIC_NOT_FOUND, text)
        return topic

    def _fields(
        self, context: CallContext, topic: TopicConfig, message: v2.Message
    ) -> dict[str, str]:
        """Return the header fields of the request that appends a message.

        Raises:
            V5Error: The message is invalid.
        """
        config, system = self._config(), message.system_properties
        if not message.body:
            raise V5Error(v2.MESSAGE_BODY_EMPTY, "message body cannot be empty")
        if len(message.body) > config.body_bytes_max:
            text = f"message body cannot exceed the max {config.body_bytes_max}"
            raise V5Error(v2.MESSAGE_BODY_TOO_LARGE, text)
        properties = properties_of(message, topic.name, context.address[0])
        if config.type_check:
            check_type(topic.attributes, *message_types(properties))
        sys_flag = SYS_COMPRESSED if system.body_encoding == v2.GZIP else 0
        if system.message_type == v2.TRANSACTION:
            sys_flag |= SYS_PREPARED
        group = system.message_group
        queue = consistent_hash(java_hash(group), topic.write_queues) if group else -1
        return {
            "producerGroup": topic.name,  # as in Apache's proxy: checks find the producer by topic
            "topic": topic.name,
            "defaultTopic": TEMPLATE_TOPIC,
            "defaultTopicQueueNums": "4",
            "queueId": str(queue),
            "sysFlag": str(sys_flag),
            "bornTimestamp": properties.get("BORN_TIMESTAMP") or str(self._clock.now_ms()),
            "flag": "0",
            "properties": "".join(f"{k}{NAME_END}{v}{ENTRY_END}" for k, v in properties.items()),
            "reconsumeTimes": "0",
        }


def properties_of(message: v2.Message, topic: str, address: str) -> dict[str, str]:
    """Return the properties of the record of a message.

    Args:
        address: Address of the client, for messages without a born host.
    Raises:
        V5Error: A property is invalid.
    """
    system = message.system_properties
    properties = _user_properties(message)
    if not system.message_id.strip():
        raise V5Error(v2.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if checks.has_control_character(system.message_id):
        raise V5Error(v2.ILLEGAL_MESSAGE_ID, "message id cannot contain control character")
    properties["UNIQ_KEY"] = system.message_id
    if system.message_type == v2.TRANSACTION:
        properties["TRAN_MSG"] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            recovery_s = system.orphaned_transaction_recovery_duration.seconds
            if recovery_s > RECOVERY_S_MAX:
                text = "the max transaction recovery time of message is too large, max is "
                text += str(RECOVERY_S_MAX)
                raise V5Error(v2.BAD_REQUEST, text)
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(max(recovery_s, 0))
    if system.HasField("delivery_timestamp"):
        time = system.delivery_timestamp
        properties["TIMER_DELIVER_MS"] = str(time.seconds * 1_000 + time.nanos // 1_000_000)
    if system.HasField("priority"):
        if system.priority < 0:
            raise V5Error(v2.BAD_REQUEST, f"priority {system.priority} is negative")
        properties[PRIORITY] = str(system.priority)
    if system.message_type == v2.LITE or system.lite_topic:
        raise V5Error(v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, NO_LITE_TOPICS)
    properties["PGROUP"] = topic
    if system.message_group:
        checks.check_message_group(system.message_group)
        properties["__SHARDINGKEY"] = system.message_group
    for name, text in (
        ("TRACE_CONTEXT", system.trace_context),
        ("__BORNHOST", system.born_host.strip() or address),
    ):
        checks.check_property(name, text)
        if text:
            properties[name] = text
    if system.HasField("born_timestamp"):
        time = system.born_timestamp
        born_ms = time.seconds * 1_000 + time.nanos // 1_000_000
        if 0 < born_ms <= checks.TIME_MS_MAX:
            properties["BORN_TIMESTAMP"] = str(born_ms)
    return properties


def _user_properties(message: v2.Message) -> dict[str, str]:
    """Check and return the user properties, the tag and the keys of a message."""
    system, size = message.system_properties, 0
    properties: dict[str, str] = {}
    if len(message.user_properties) > USER_PROPERTIES_MAX:
        text = f"too many user properties, max is {USER_PROPERTIES_MAX}"
        raise V5Error(v2.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for name, value in message.user_properties.items():
        if name in RESERVED:
            text = f"property is used by system: {name}"
            raise V5Error(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
        checks.check_property(name, value)
        size += len(name.encode()) + len(value.encode())
        properties[name] = value
    if system.tag:
        checks.check_tag(system.tag)
        size += len(system.tag.encode())
        properties["TAGS"] = system.tag
    for key in system.keys:
        checks.check_key(key)
        size += len(key.encode())
    if system.keys:
        properties["KEYS"] = " ".join(system.keys)
    if size > USER_PROPERTY_BYTES_MAX:
        text = f"the total size of user property is too large, max is {USER_PROPERTY_BYTES_MAX}"
        raise V5Error(v2.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return properties


def _entry(message: v2.Message, response: Response) -> api.SendResultEntry:
    system = message.system_properties
    if response.code != ResponseCode.SUCCESS:
        code = code_of(response)
        if response.code == ResponseCode.MESSAGE_ILLEGAL and system.HasField("delivery_timestamp"):
            code = v2.ILLEGAL_DELIVERY_TIME  # the other causes were checked before the send
        return api.SendResultEntry(status=status(code, response.remark or ""))
    fields = response.fields or {}
    entry = api.SendResultEntry(
        status=status(v2.OK),
        message_id=fields.get("transactionId", system.message_id),
        offset=int(fields.get("queueOffset", 0)),
        recall_handle=fields.get("recallHandle", ""),
    )
    entry.transaction_id = entry.message_id  # as in Apache's proxy
    if system.message_type == v2.TRANSACTION:
        entry.transaction_id = transaction_id(fields["msgId"], entry.offset)
    return entry


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a hash; if a bucket is added, few values move to another bucket.

    Apache's proxy chooses the queue of a message group with this function.

    Source: Hashing.consistentHash of Guava 31
    """
    state, candidate = value & 0xFFFF_FFFF_FFFF_FFFF, 0
    while True:
        state = (_GENERATOR * state + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((candidate + 1) / (((state >> 33) + 1) / _BUCKET_SCALE))
        if not 0 <= following < buckets:
            return candidate
        candidate = following
