"""Queries: messages by key (12), a message by log offset (33), queue units (321).

Source: QueryMessageProcessor, AdminBrokerProcessor
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.net import fields
from duemq.net.wire_json import encode
from duemq.registry.clients import ClientTable
from duemq.registry.internal_topics import check_readable
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.request import Request, RequestHandler, Response
from message_store.layout import Row
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

QUERY_COUNT_MAX = 64  # messages of a query by key: the default of maxMsgsNumBatch
QUERY_BYTES_MAX = 8 << 20  # bytes of a response to it
QUEUE_UNITS_MAX = 4_096  # units of a response to 321


class QueryProcessor:
    """Handler of queries (12, 33, 321).

    Args:
        indexed: Returns store time in ms and log offset up to which keys are indexed.
        count_default: Maximum number of messages of a query by unique key (`defaultQueryMaxNum`).
        records: Permission check on the topic of the record that 33 returns.
    """

    def __init__(
        self,
        store: MessageStore,
        clients: ClientTable,
        indexed: Callable[[], tuple[int, int]],
        *,
        count_default: int = 32,
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._store, self._clients = store, clients
        self._indexed, self._count_default = indexed, count_default

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.QUERY_MESSAGE: self.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.by_offset,
            RequestCode.QUERY_CONSUME_QUEUE: self.queue_units,
        }

    async def by_key(self, request: Request) -> Response:
        """Return the messages of a topic with a key or unique key, newest first."""
        topic, key = fields.text(request, "topic"), fields.text(request, "key")
        check_readable(topic)
        count = fields.integer(request, "maxNum")
        begin_ms = fields.long(request, "beginTimestamp")
        end_ms = fields.long(request, "endTimestamp")
        if fields.boolean(request, "_UNIQUE_KEY_QUERY"):
            count = self._count_default
        count = min(max(count, 1), QUERY_COUNT_MAX)
        matches = self._store.query_keys(topic, key, count, begin_ms, end_ms)
        body = self._bodies(topic, key, matches)
        indexed_ms, indexed_offset = self._indexed()
        header = {
            "indexLastUpdateTimestamp": str(indexed_ms),
            "indexLastUpdatePhyoffset": str(indexed_offset),
        }
        if not body:
            text = "can not find message, maybe time range not correct"
            return Response(ResponseCode.QUERY_NOT_FOUND, text, header)
        return Response(fields=header, body=body)

    async def by_offset(self, request: Request) -> Response:
        """Return the message that starts at a log offset; 16 if it is not of the named topic."""
        offset = fields.long(request, "offset")
        try:
            record = self._store.read_queued(offset)
        except RecordUnreadable as fault:
            return Response(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}: {fault}"
            )
        check_readable(record.topic)
        self._records.check_record(request, record.topic, Action.SUB, Action.GET)
        if request.fields.get("topic", "").strip() not in ("", record.topic):
            raise RequestError(ResponseCode.NO_PERMISSION, "The topic does not match the message")
        return Response(body=bytes(self._store.record_bytes(offset, record.total_size)))

    async def queue_units(self, request: Request) -> Response:
        """Return units of a consume queue, and the subscription of a group, if one is named."""
        topic = fields.text(request, "topic")
        queue_id, index = (
            fields.integer(request, "queueId"),
            fields.long(request, "index"),
        )
        count = min(max(fields.integer(request, "count"), 0), QUEUE_UNITS_MAX)
        group = request.fields.get("consumerGroup", "")
        check_readable(topic)
        if self._store.topics.find(topic) < 0:
            return Response(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = self._store.readable_bounds(topic, queue_id)
        units = self._store.units(topic, queue_id, index, count)
        subscription = self._clients.subscription(group, topic) if group else None
        rows = [_unit(unit) for unit in units]
        body: dict[str, object] = {"queueData": rows, "minQueueIndex": low, "maxQueueIndex": high}
        if subscription is not None:
            body["subscriptionData"] = subscription.to_json()
            body["filterData"] = json.dumps(subscription.filter_json(group), indent="\t")
        elif group:
            body["filterData"] = f"{group}@{topic} is not online!"
        return Response(body=encode(dict(sorted(body.items()))))

    def _bodies(self, topic: str, key: str, offsets: list[int]) -> bytes:
        """Return the bytes of the records at these offsets that have the topic and key.

        Hash collisions in the index may give other records.
        """
        parts: list[bytes] = []
        size = 0
        for offset in offsets:
            try:
                record = self._store.read_record(offset)
            except RecordUnreadable:
                continue
            if record.topic != topic or not has_key(record, key):
                continue
            size += record.total_size
            if parts and size > QUERY_BYTES_MAX:
                break
            parts.append(bytes(self._store.record_bytes(offset, record.total_size)))
        return b"".join(parts)


def has_key(record: Record, key: str) -> bool:
    """Return whether `key` is one of the record's keys or its unique key."""
    return key in record.properties.get("KEYS", "").split(" ") or key == record.properties.get(
        "UNIQ_KEY"
    )


def _unit(unit: Row) -> dict[str, object]:
    return {
        "eval": False,  # Apache evaluates units with a consume queue extension only
        "physicOffset": int(unit["phys_offset"]),
        "physicSize": int(unit["size"]),
        "tagsCode": int(unit["tags_code"]),
    }
