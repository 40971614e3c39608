"""One broker for the tests of a module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from duemq.broker.broker import Broker
from message_store.log.batch import PutBatch
from tests.support.free_ports import free_ports
from tests.support.running_broker import small
from tests.support.v5_client import typed_topic

Run = Callable[[Coroutine[Any, Any, Any]], Any]
TOPICS = {
    "norm": "NORMAL",
    "delay": "DELAY",
    "fifo": "FIFO",
    "tran": "TRANSACTION",
    "mixed": "MIXED",
    "prio": "PRIORITY",
}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run coroutines on the loop of the module's broker, as the command does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


@pytest.fixture(scope="module")
def broker(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Broker with one topic of each type and a port for v5 clients."""
    keys = {
        "grpcServerPort": str(free_ports(1)[0]),
        "recallMessageEnable": "true",
        "transactionTimeOut": "100",
        "transactionCheckInterval": "100",
        "maxMessageSize": "20000",
    }
    started = Broker(small(tmp_path_factory.mktemp("v5"), **keys))

    async def start() -> Broker:
        await started.__aenter__()
        for name, kind in TOPICS.items():
            await typed_topic(started, name, kind)
        return started

    yield run(start())
    run(started.__aexit__(None, None, None))


@pytest.fixture
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls that find no message wait for as little as they request, instead of 5 s."""
    monkeypatch.setattr("duemq.v5.receives.POLL_MS_MIN", 1)


@pytest.fixture
def batch_sizes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of records of each batch that the put path appends."""
    sizes: list[int] = []
    put = broker.parts.put_path.put

    def record_size(batch: PutBatch) -> None:
        sizes.append(batch.count)
        put(batch)

    monkeypatch.setattr(broker.parts.put_path, "put", record_size)
    return sizes
