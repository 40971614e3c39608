"""Locks of queues, for consumers of ordered messages: held at the master, renewed every 20 s."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from duemq.client.client import Client
from duemq.client.errors import ClientError
from duemq.client.message import MessageQueue
from duemq.client.routes import json_object
from duemq_common.codes import RequestCode
from duemq_common.log_lines import FailureLog

log = logging.getLogger(__name__)
LOCK_S: Final = 30.0  # the client's view; a broker keeps a lock for 60 s


class QueueLocks:
    """Locks of the queues of a group at their masters."""

    def __init__(self, client: Client, group: str) -> None:
        self._client, self._group = client, group
        self._failures = FailureLog(log)

    async def lock(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Lock queues, or renew their locks.

        Returns:
            The locked queues, and those that another consumer has locked. A queue whose broker did
            not respond is in neither.
        """
        locked: set[MessageQueue] = set()
        foreign: set[MessageQueue] = set()
        for address, ours in (await self._by_master(queues)).items():
            try:
                response = await self._client.ask(
                    address, RequestCode.LOCK_BATCH_MQ, {}, self._body(ours)
                )
                rows = json_object(response).get("lockOKMQSet", [])
                keys = {(row["topic"], row["brokerName"], int(row["queueId"])) for row in rows}
            except (ClientError, ValueError, KeyError, TypeError) as error:
                self._failures.failed(address, error, "queues of %s are not locked", address)
                continue
            self._failures.succeeded(address)
            for queue in ours:
                is_locked = (queue.topic, queue.broker_name, queue.queue_id) in keys
                (locked if is_locked else foreign).add(queue)
        return locked, foreign

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues; a broker that does not respond forgets the locks after 60 s."""
        for address, ours in (await self._by_master(queues)).items():
            try:
                await self._client.ask(address, RequestCode.UNLOCK_BATCH_MQ, {}, self._body(ours))
            except ClientError as error:
                log.warning("queues of %s are not unlocked: %s", address, error)

    async def _by_master(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        grouped: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                address = (await self._client.route(queue.topic)).master(queue.broker_name)
            except ClientError:
                continue
            if address:
                grouped.setdefault(address, []).append(queue)
        return grouped

    def _body(self, queues: Collection[MessageQueue]) -> bytes:
        return msgspec.json.encode(
            {
                "clientId": self._client.client_id,
                "consumerGroup": self._group,
                "onlyThisBroker": False,
                "mqSet": [
                    {
                        "topic": queue.topic,
                        "brokerName": queue.broker_name,
                        "queueId": queue.queue_id,
                    }
                    for queue in queues
                ],
            }
        )
