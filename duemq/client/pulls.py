"""Pulls of a push consumer: one task per queue, long polls on the connection of its broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from duemq.client.client import Client
from duemq.client.errors import ClientError, NoRoute, Refused
from duemq.client.filters import TAG
from duemq.client.handlers import HandlerPool
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.pull_consumer import PULL_BYTES_MAX, PULL_COUNT, PULLED, SUSPEND, pulled
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import DueMQError

log = logging.getLogger(__name__)
TIMEOUT_S: Final = 15.0  # time for the response of a broker after it has held a pull
PAUSE_S: Final = 1.0  # after a pull that failed
EMPTY_PULL_S: Final = 0.1  # minimum interval of pulls that return nothing
NO_SUBSCRIPTION: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""Refusals by a broker that lacks the heartbeat."""

Moved = Callable[[ProcessQueue, int], Awaitable[None]]
"""Restarts a queue at another offset."""


class QueuePulls:
    """Pulls of the queues of a consumer.

    Args:
        poll_s: Time that a broker holds a pull of a queue without messages, in seconds.
        moved: Called when a broker has moved the offset of a queue back.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        poll_s: float,
        limits: FlowLimits,
        pool: HandlerPool,
        moved: Moved,
    ) -> None:
        self._client, self._group, self._poll_s = client, group, poll_s
        self._limits, self._pool, self._moved = limits, pool, moved

    def start(self, queue: ProcessQueue) -> None:
        """Start the task that pulls a queue until the queue is stopped."""
        work = self._pull_until_stopped(queue)
        queue.pulling = self._client.run(work, f"pull {queue.queue}")

    async def _pull_until_stopped(self, queue: ProcessQueue) -> None:
        fields = self._fields(queue)
        while not queue.stopped:
            await self._limits.room(queue)
            try:
                await self._pull(queue, fields)
                queue.failure = ""
            except (DueMQError, OSError, TimeoutError, ValueError) as error:
                if queue.stopped:
                    return
                await self._failed(queue, error)

    async def _failed(self, queue: ProcessQueue, error: Exception) -> None:
        """Log a failure once, wait, and look for the broker again."""
        refusal = None
        if isinstance(error, Refused):
            refusal = await self._filter_refusal(queue, error.address)
        error = refusal or error
        if (failure := str(error)) != queue.failure:
            log.warning("no messages of %s: %s", queue.queue, failure)
            queue.failure = failure
        queue.broker_id = 0
        await asyncio.sleep(PAUSE_S)
        with suppress(ClientError):
            if isinstance(error, Refused) and error.code in NO_SUBSCRIPTION:
                await self._client.heartbeats.send([error.address])
            else:
                await self._client.route(queue.queue.topic, refresh=True)

    async def _filter_refusal(self, queue: ProcessQueue, address: str) -> Refused | None:
        """Return why a broker does not accept an SQL92 filter; None: it accepts it."""
        subscription = queue.subscription
        if subscription is None or subscription.only.kind == TAG:
            return None
        body = {
            "clientId": self._client.client_id,
            "group": self._group,
            "namespace": "",
            "subscriptionData": subscription.only.subscription(
                subscription.topic, subscription.version
            ),
        }
        code = RequestCode.CHECK_CLIENT_CONFIG
        try:
            await self._client.ask(address, code, {}, msgspec.json.encode(body))
        except Refused as refusal:
            return refusal
        except ClientError:
            return None
        return None

    async def _pull(self, queue: ProcessQueue, fields: dict[str, str]) -> None:
        client = self._client
        route = client.cached_route(queue.queue.topic) or await client.route(queue.queue.topic)
        address = route.any_member(queue.queue.broker_name, queue.broker_id)
        if not address:
            raise NoRoute(f"broker {queue.queue.broker_name} has no address")
        await client.heartbeats.before_use([address])
        connection = client.connection(address) or await client.connect(address)
        fields["queueOffset"] = str(queue.next_offset)
        start_s = asyncio.get_running_loop().time()
        request = client.request(RequestCode.PULL_MESSAGE, fields)
        response = await connection.call(request, self._poll_s + TIMEOUT_S)
        if response.code not in PULLED:
            raise client.refusal(response, address, RequestCode.PULL_MESSAGE)
        result = pulled(response, queue.queue, queue.only, queue.next_offset)
        if queue.stopped:
            return
        queue.broker_id = int((response.fields or {}).get("suggestWhichBrokerId", 0))
        if result.moved and result.next_offset < queue.next_offset:
            await self._moved(queue, result.next_offset)
            return
        has_advanced = result.next_offset > queue.next_offset
        self._limits.add(queue, result.messages, max(result.next_offset, queue.next_offset))
        if result.messages:
            self._pool.schedule(queue)
        if not has_advanced and asyncio.get_running_loop().time() < start_s + EMPTY_PULL_S:
            await asyncio.sleep(EMPTY_PULL_S)

    def _fields(self, queue: ProcessQueue) -> dict[str, str]:
        subscription = queue.subscription
        return {
            "consumerGroup": self._group,
            "topic": queue.queue.topic,
            "queueId": str(queue.queue.queue_id),
            "queueOffset": "0",
            "maxMsgNums": str(PULL_COUNT),
            "sysFlag": str(SUSPEND),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(self._poll_s * 1_000)),
            "subscription": queue.only.expression,
            "subVersion": str(subscription.version if subscription is not None else 0),
            "expressionType": queue.only.kind,
            "maxMsgBytes": str(PULL_BYTES_MAX),
        }
