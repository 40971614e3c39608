"""Recovery from the two transaction topics of stores that Apache's brokers wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.registry.clients import ClientTable
from duemq.registry.config_file import ConfigFile
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.heartbeats import Heartbeat
from duemq.registry.managers import Identity
from duemq.transactions.transactions import Transactions
from duemq_common.clock import FakeClock
from duemq_common.request import Request
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.fakes import HOST, FakePeer, FakeTopics
from tests.support.golden_stores import (
    STORES,
    GoldenStore,
    copy_golden_store,
    end_ms,
    golden_config,
    level_rules,
)

OPEN = {"apache-4.9.7-clean": 1, "apache-4.9.7-running": 1}


@pytest.mark.parametrize("golden", STORES, ids=str)
def test_only_half_messages_unfinished_in_apache_are_checked_back(
    run: Callable[..., Any], tmp_path: Path, golden: GoldenStore
) -> None:
    """The store of 4.9.7 has one unfinished half message, that of 5.3.3 has none."""
    clock = FakeClock(end_ms(golden.version))
    root = copy_golden_store(golden.name, tmp_path)
    store = MessageStore(golden_config(root), clock, tags_code_rules=level_rules())

    async def scene() -> None:
        with store:
            offsets = OffsetManager(ConfigFile(store.config_path("consumerOffset.json")), clock)
            offsets.load()
            clients, peer = ClientTable(), FakePeer()
            reported = Heartbeat("c", ("golden_tx",), ())
            clients.heartbeat(reported, peer, language="JAVA", version=479, now_ms=0)

            async def put(batch: PutBatch) -> None:
                store.put(batch)

            service = Transactions(
                store,
                FakeTopics(),
                offsets,
                clients,
                put,
                Identity("broker-a", "C", 0, HOST),
                clock,
                BrokerConfig,
            )
            service.queue.recover()
            clock.advance(60_000)
            await service.check()
            assert len(peer.sent) == OPEN.get(golden.name, 0)
            for request in peer.sent:
                fields = request.fields | {"producerGroup": "golden_tx", "commitOrRollback": "8"}
                assert (await service.end(Request(37, fields))).code == 0
            await service.check()
            (_, half_end), (_, op_end) = (
                store.queue_bounds(t, 0) for t in (HALF_TOPIC, OP_HALF_TOPIC)
            )
            assert (service.queue.halves.half_next, service.queue.halves.op_next) == (
                half_end,
                op_end,
            )
            assert store.queue_bounds("GoldenTx", 1) == (0, len(peer.sent))

    run(scene())
