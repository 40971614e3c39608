"""Transaction service on a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq.configuration.config import BrokerConfig
from duemq.registry.clients import ClientTable
from duemq.registry.heartbeats import Heartbeat
from duemq.registry.managers import Identity
from duemq.transactions.half_messages import to_half_message
from duemq.transactions.transactions import Transactions
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from tests.support.fakes import HOST, FakeOffsets, FakePeer, FakeTopics
from tests.support.stores import add_message, open_store

IDENTITY = Identity("broker-a", "DefaultCluster", 0, HOST)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Rig:
    """Transaction service on a real store; `reopen` restarts it."""

    def __init__(self, root: Path, **config: int) -> None:
        self.root, self.clock = root, FakeClock()
        self.offsets, self.clients, self.topics = FakeOffsets(), ClientTable(), FakeTopics()
        self.config, self.peer = BrokerConfig(**config), FakePeer()
        self.hooks: list[Any] = []
        self.append_hooks: list[Any] = []  # refusals of the disk
        self.store_changes: dict[str, Any] = {}
        self.clients.heartbeat(
            Heartbeat("c", ("P",), ()), self.peer, language="JAVA", version=479, now_ms=0
        )
        self.open()

    def open(self) -> None:
        self.store = open_store(self.root, self.clock, **self.store_changes).__enter__()
        self.service = Transactions(
            self.store,
            self.topics,
            self.offsets,
            self.clients,
            self.put,
            IDENTITY,
            self.clock,
            lambda: self.config,
        )

    def reopen(self) -> None:
        self.store.__exit__(None, None, None)
        self.open()
        self.service.queue.recover()

    async def put(self, batch: PutBatch) -> None:
        for hook in self.hooks:
            hook(batch, self.clock.now_ms())
        batch.refuse_together()
        for hook in self.append_hooks:
            hook(batch, self.clock.now_ms())
        self.store.put(batch)
        await self.confirm()

    async def confirm(self) -> None:
        """Return at once, as if confirmed; tests replace it."""

    def send(
        self,
        body: bytes = b"x",
        key: str = "u",
        topic: str = "T",
        queue_id: int = 1,
        **properties: str,
    ) -> np.void:
        batch = PutBatch(1)
        reported = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": key} | properties
        add_message(self.store, batch, topic, queue_id, body, properties=reported, sys_flag=4)
        to_half_message(batch, 0, self.store.topics)
        self.store.put(batch)
        return batch.rows[0].copy()

    async def end(
        self, row: np.void | dict[str, int], verdict: int = COMMIT, **changes: str | int
    ) -> Response | None:
        fields = {
            "producerGroup": "P",
            "tranStateTableOffset": row["queue_offset"],
            "commitLogOffset": row["phys_offset"],
            "commitOrRollback": verdict,
            "msgId": "u",
        } | changes
        texts = {name: str(value) for name, value in fields.items()}
        return await self.service.end(Request(37, texts))

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        low, high = self.store.queue_bounds(topic, queue_id)
        units = [self.store.units(topic, queue_id, n, 1)[0] for n in range(low, high)]
        return [self.store.read_record(int(unit["phys_offset"])) for unit in units]

    def requested(self) -> list[tuple[int, int]]:
        """Return (queue offset, log offset) of each check-back request (39)."""
        reported = [r.fields for r in self.peer.sent if r.code == 39]
        return [(int(f["tranStateTableOffset"]), int(f["commitLogOffset"])) for f in reported]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.__exit__(None, None, None)
