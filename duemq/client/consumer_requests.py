"""Requests of brokers to a push consumer: members, offsets, state, one message for a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec

from duemq.client.client import Client
from duemq.client.connection import ServerConnection
from duemq.client.handlers import HandlerPool
from duemq.client.message import MessageQueue, ReceivedMessage
from duemq.client.process_queue import ProcessQueue
from duemq.client.rebalance import Rebalance
from duemq.client.subscriptions import ConsumerSettings
from duemq.net.wire_json import QueueKey, encode, parse_object, queue_table
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response
from message_store.log.record import decode_record


class ConsumerRequests:
    """Handler of the requests to a consumer.

    Args:
        entry: Returns the consumer's entry in a heartbeat.
    Source: ClientRemotingProcessor
    """

    def __init__(
        self,
        client: Client,
        group: str,
        settings: ConsumerSettings,
        rebalance: Rebalance,
        pool: HandlerPool,
        entry: Callable[[], dict[str, object]],
    ) -> None:
        self._client, self._group, self._settings = client, group, settings
        self._rebalance, self._pool, self._entry = rebalance, pool, entry
        self._started_ms = client.clock.now_ms()
        self._handlers = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.change,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.positions,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.state,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
        }

    def register(self) -> None:
        """Handle the requests that name the group."""
        for code, handler in self._handlers.items():
            self._client.handle(code, handler, group=self._group)

    def unregister(self) -> None:
        """Stop handling requests."""
        for code in self._handlers:
            self._client.unhandle(code, group=self._group)

    async def change(self, request: Request, connection: ServerConnection) -> Response:
        """Rebalance: a member joined or left."""
        self._rebalance.change()
        return Response()

    async def reset(self, request: Request, connection: ServerConnection) -> Response:
        """Continue queues at other offsets."""
        for queue, offset in offset_table(request.body).items():
            if process_queue := self._queue_of(queue):
                await self._rebalance.restart(process_queue, offset)
        return Response()

    async def positions(self, request: Request, connection: ServerConnection) -> Response:
        """Return the offsets of the queues of a topic."""
        topic = request.fields.get("topic", "")
        table = {
            _key(queue): each.lowest()
            for queue, each in self._rebalance.queues.items()
            if queue.topic == topic
        }
        return Response(body=encode({"messageQueueTable": queue_table(table)}))

    async def state(self, request: Request, connection: ServerConnection) -> Response:
        """Return what the consumer does. ConsumerRunningInfo"""
        entry = self._entry()
        properties = {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_ORDERLY": str(self._settings.ordered).lower(),
            "PROP_CONSUME_TYPE": entry["consumeType"],
            "PROP_NAMESERVER_ADDR": ";".join(self._client.namesrvs) + ";",
            "PROP_THREADPOOL_CORE_SIZE": str(self._settings.handlers_max),
        }
        queues = {_key(queue): _queue_info(each) for queue, each in self._rebalance.queues.items()}
        body = {
            "mqPopTable": {},
            "mqTable": queue_table(queues),
            "properties": properties,
            "statusTable": {},
            "subscriptionSet": entry["subscriptionDataSet"],
            "userConsumerInfo": {},
        }
        return Response(body=encode(body))

    async def consume(self, request: Request, connection: ServerConnection) -> Response:
        """Run the handler for the message of the request. ConsumeMessageDirectlyResult"""
        record = decode_record(memoryview(request.body), 0)
        queue = MessageQueue(record.topic, request.fields.get("brokerName", ""), record.queue_id)
        start_s = asyncio.get_running_loop().time()
        retry = await self._pool.run_handler([ReceivedMessage(record, queue)], None)
        result = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if retry is None else "CR_LATER",
            "order": self._settings.ordered,
            "remark": None if retry is None else str(retry),
            "spentTimeMills": int((asyncio.get_running_loop().time() - start_s) * 1_000),
        }
        return Response(ResponseCode.SUCCESS, body=encode(result))

    def _queue_of(self, queue: MessageQueue) -> ProcessQueue | None:
        """Return an assigned queue; with one broker and no name server, whatever its name."""
        if self._client.broker:
            queue = MessageQueue(queue.topic, "", queue.queue_id)
        return self._rebalance.queues.get(queue)


def offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of a request to reset them, in the form for Java or for C++.

    Raises:
        ValueError: The body has another form.
    """
    try:
        table = parse_object(body)["offsetTable"]
        if isinstance(table, dict):
            rows = [{**json.loads(key), "offset": offset} for key, offset in table.items()]
        else:
            rows = list(table)  # type: ignore[call-overload]
        return {
            MessageQueue(row["topic"], row["brokerName"], int(row["queueId"])): int(row["offset"])
            for row in rows
        }
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise ValueError(f"the body is not a table of offsets: {error!r}") from error


def _key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.broker_name, queue.queue_id, queue.topic)


def _queue_info(queue: ProcessQueue) -> dict[str, object]:
    """Return the state of a queue. ProcessQueueInfo"""
    return {
        "cachedMsgCount": len(queue.pending),
        "cachedMsgMaxOffset": max(queue.pending, default=0),
        "cachedMsgMinOffset": min(queue.pending, default=0),
        "cachedMsgSizeInMiB": queue.pending_bytes >> 20,
        "commitOffset": queue.lowest(),
        "droped": queue.stopped,
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": 0,
        "locked": queue.locked_until_s != float("inf"),
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
