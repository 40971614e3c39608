"""Small broker for admin tools: a real store, real managers, and both admin processors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from duemq.admin.group_admin import GroupAdminProcessor
from duemq.admin.topic_admin import TopicAdminProcessor
from duemq.configuration.config import BrokerConfig
from duemq.registry.clients import ClientTable
from duemq.registry.config_file import ConfigFile
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.heartbeats import ConsumerEntry, Heartbeat
from duemq.registry.managers import Identity
from duemq.registry.subscriptions import parse_expression
from duemq.registry.topics import TopicManager
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from message_store.store import MessageStore
from tests.support.fakes import FakePeer
from tests.support.no_journal import group_journal, topic_journal
from tests.support.stores import LOOPBACK, open_store


class AdminBroker:
    """Broker without a network; `call` runs the processor of a request code."""

    def __init__(self, store: MessageStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        config = BrokerConfig(broker_name="b")
        self.topics = TopicManager(
            config, store.topics, self._file("topics"), clock, journal=topic_journal()
        )
        self.topics.load()
        self.groups = GroupManager(self._file("subscriptionGroup"), clock, journal=group_journal())
        self.groups.load()
        self.offsets = OffsetManager(self._file("consumerOffset"), clock)
        self.clients = ClientTable()
        us = Identity("b", "DefaultCluster", 0, LOOPBACK)
        self.forgotten: list[str] = []
        self.topic_admin = TopicAdminProcessor(
            store,
            self.topics,
            self.offsets,
            us,
            groups_online=self.clients.groups_subscribed_to,
            forget=self._forget,
        )
        self.group_admin = GroupAdminProcessor(
            store, self.topics, self.groups, self.offsets, self.clients, us, clock
        )
        self.handlers = self.topic_admin.handlers() | self.group_admin.handlers()

    async def _forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    def _file(self, name: str) -> ConfigFile:
        return ConfigFile(self.store.config_path(f"{name}.json"))

    def call(self, code: int, body: bytes = b"", **fields: str) -> Response:
        """Return the response to a request."""
        response = asyncio.run(self.handlers[code](Request(code, fields, body)))  # type: ignore[var-annotated]
        assert response is not None
        return response

    def see(self, code: int, body: bytes = b"", **fields: str) -> Any:
        """Return the body of a successful response; queue keys are compact JSON text."""
        response = self.call(code, body, **fields)
        assert response.code == 0
        return json_dialect.loads(bytes(response.body).decode())

    def create(self, topic: str, queues: int = 2) -> None:
        """Create a topic."""
        asyncio.run(self.topics.ensure(topic, queues=queues))

    def subscribe(self, group: str, *topics: str) -> None:
        """Register one member of a group."""
        entry = ConsumerEntry(
            group=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=tuple(parse_expression(topic, "A||B", version=7) for topic in topics),
        )
        beat = Heartbeat(client_id=group, producers=(), consumers=(entry,), without_sub=False)
        self.clients.heartbeat(beat, FakePeer(group), language="JAVA", version=479, now_ms=0)


@contextmanager
def admin_broker(root: Path) -> Iterator[AdminBroker]:
    """Yield a broker on a new store."""
    clock = FakeClock()
    with open_store(root, clock) as store:
        yield AdminBroker(store, clock)


def key(queue_id: int, topic: str) -> str:
    """Return the text of a queue key."""
    return json.dumps(
        {"brokerName": "b", "queueId": queue_id, "topic": topic}, separators=(",", ":")
    )
