"""Heartbeats: register the groups of a client at brokers, every 30 s and before they are needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from duemq.client.connection import ServerConnection
from duemq.client.connections import ServerConnections
from duemq.client.errors import ClientError
from duemq_common.codes import RequestCode
from duemq_common.log_lines import FailureLog

log = logging.getLogger(__name__)
INTERVAL_S: Final = 30.0

ConsumerData = Callable[[], dict[str, object]]
"""Returns the current entry of a consumer in a heartbeat. ConsumerData"""


class Heartbeats:
    """Heartbeats of a client; the first group starts their task.

    Args:
        client_id: Id of the client, the same at all brokers.
        brokers: Returns the addresses of all known brokers.
    Source: MQClientInstance.sendHeartbeatToAllBrokerWithLock
    """

    def __init__(
        self, connections: ServerConnections, client_id: str, brokers: Callable[[], list[str]]
    ) -> None:
        self._connections, self._client_id, self._brokers = connections, client_id, brokers
        self._producers: dict[str, int] = {}  # registrations by group
        self._consumers: dict[str, ConsumerData] = {}
        self._registered: dict[str, ServerConnection] = {}  # connection of the first heartbeat
        self._task: asyncio.Task[None] | None = None
        self._failures = FailureLog(log)

    def add_producer(self, group: str) -> None:
        """Register a producer group from the next heartbeat on."""
        self._producers[group] = self._producers.get(group, 0) + 1
        self._start()

    def add_consumer(self, group: str, data: ConsumerData) -> None:
        """Register a consumer group from the next heartbeat on.

        Raises:
            ValueError: The client has a consumer of this group already.
        """
        if group in self._consumers:
            raise ValueError(f"the client has a consumer of group {group} already")
        self._consumers[group] = data
        self._start()

    async def remove(self, *, producer: str = "", consumer: str = "") -> None:
        """Unregister a group at all brokers; those that do not respond forget it themselves."""
        if producer and self._producers.get(producer, 0) > 1:
            self._producers[producer] -= 1
            return
        self._producers.pop(producer, None)
        self._consumers.pop(consumer, None)
        fields = {
            "clientID": self._client_id,
            "producerGroup": producer or None,
            "consumerGroup": consumer or None,
        }
        calls = (
            self._connections.call(address, RequestCode.UNREGISTER_CLIENT, fields)
            for address in self._brokers()
            if self._connections.connection(address) is not None
        )
        await asyncio.gather(*calls, return_exceptions=True)

    async def send(self, addresses: Iterable[str] | None = None) -> list[str]:
        """Send a heartbeat to brokers, by default to all of the known routes.

        A broker that does not respond is logged once and gets the next one.

        Returns:
            Addresses of the brokers that have accepted it.
        """
        if not self._producers and not self._consumers:
            return []
        body = msgspec.json.encode(
            {
                "clientID": self._client_id,
                "producerDataSet": [{"groupName": group} for group in self._producers],
                "consumerDataSet": [data() for data in self._consumers.values()],
            }
        )
        chosen = list(self._brokers() if addresses is None else addresses)
        calls = (self._connections.ask(each, RequestCode.HEART_BEAT, {}, body) for each in chosen)
        results = await asyncio.gather(*calls, return_exceptions=True)
        accepted = []
        for address, result in zip(chosen, results, strict=True):
            if isinstance(result, ClientError):
                self._failures.failed(address, result, "no heartbeat to %s", address)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._failures.succeeded(address)
                accepted.append(address)
        return accepted

    async def before_use(self, addresses: Iterable[str]) -> None:
        """Send a heartbeat to the brokers that got none on their connection.

        A broker can only send requests to groups that it knows.
        """
        for address in addresses:
            connection = self._connections.connection(address)
            if connection is None or self._registered.get(address) is not connection:
                accepted = await self.send([address])
                connection = self._connections.connection(address)
                if accepted and connection is not None:
                    self._registered[address] = connection

    def _start(self) -> None:
        if self._task is None:
            self._task = self._connections.run(self._repeat(), "heartbeats")

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.send()
