"""Replica side of AutoSwitchHA against Apache's broker in controller mode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.configuration.replication_config import ReplicationConfig
from duemq.replication.autoswitch_client import autoswitch_sessions
from duemq.replication.autoswitch_frames import Handshake
from duemq.replication.epoch_file import EpochFile, read_epochs
from duemq.replication.ha_client import HaClient, HaState
from duemq_common.clock import SystemClock
from message_store.store import MessageStore
from tests.interop.apache_controller import ApacheController, ApacheMember
from tests.interop.replicas import COPIED_S, NO_REPLICA, send_code
from tests.interop.store_work import KEYS, TOPIC, Ledger, verify
from tests.message_store.replication.test_raw_append import log_of
from tests.support.free_ports import LOOPBACK
from tests.support.remoting_requests import SUCCESS
from tests.support.stores import small_config
from tests.support.wait_until import until

VERSION = "5.3.3"
ID = 9  # not known to the controller


class Learner:
    """Our store and HA client, which the controller does not know."""

    def __init__(self, store: MessageStore, master: ApacheMember) -> None:
        self.store, self.file = store, EpochFile(store.root / EPOCH_FILE)
        self.confirmed = 0
        self.truncations: list[int] = []
        config = ReplicationConfig(
            role="SLAVE", ha_master_address=f"{LOOPBACK}:{master.ha_port}", heartbeat_ms=1_000
        )
        sessions = autoswitch_sessions(
            store, self.file, Handshake(ID, is_async_learner=True), on_confirmed=self._confirm
        )
        self.client = HaClient(
            store, config, SystemClock(), sessions, on_truncation=self.truncations.append
        )

    def _confirm(self, offset: int) -> None:
        self.confirmed = offset

    async def until(self, met: Callable[[], object], what: str) -> None:
        """Wait until `met()` is true."""
        await asyncio.to_thread(until, lambda: met() or None, seconds=COPIED_S, what=what)


def with_learner(
    root: Path,
    master: ApacheMember,
    work: Callable[[Learner], Awaitable[None]],
    *,
    flush_disk_type: str = "ASYNC_FLUSH",
) -> None:
    """Run `work` while a learner runs."""

    async def main() -> None:
        config = small_config(
            root, index_slots_max=64, index_entries_max=256, flush_disk_type=flush_disk_type
        )
        with MessageStore(config, SystemClock()) as store:
            learner = Learner(store, master)
            running = asyncio.ensure_future(learner.client.run())
            try:
                await work(learner)
            finally:
                learner.client.stop()
                await running

    asyncio.run(main())


def master_log(master: ApacheMember) -> bytes:
    """Return the log of a master up to its last record; Apache fills files with zeros."""
    files = sorted((master.store_dir / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)


@pytest.mark.extended
def test_log_epochs_and_confirm_offset_of_an_apache_master(tmp_path: Path) -> None:
    ledger = Ledger()

    async def work(learner: Learner) -> None:
        await asyncio.to_thread(ledger.send, apache, "while", 200)
        await learner.until(lambda: equal(learner), "the log copied")
        assert learner.client.state is HaState.TRANSFER
        apache.kill()
        await learner.until(lambda: learner.client.failure, "the connection lost")
        await asyncio.to_thread(apache.start)
        await asyncio.to_thread(ledger.send, apache, "later", 100)
        await learner.until(lambda: equal(learner), "the log copied")
        epochs = read_epochs(apache.store_dir / EPOCH_FILE)
        assert len(epochs.entries) > 1
        assert learner.file.epochs == EpochFile(learner.file.path).epochs == epochs
        await learner.until(lambda: learner.confirmed == learner.store.max_offset, "confirmed")

    def equal(learner: Learner) -> bool:
        log, end = master_log(apache), learner.store.max_offset
        return end > 0 and log_of(learner.store) == log[:end] and not any(log[end:])

    with ApacheController(VERSION, tmp_path / "controller") as controller:
        apache = ApacheMember(controller, tmp_path / "apache", keys=KEYS)
        with apache:
            apache.create_topic(TOPIC)
            ledger.send(apache, "before", 600)
            with_learner(tmp_path / "replica", apache, work)
    verify(tmp_path / "replica")


@pytest.mark.extended
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_an_apache_master_waits_for_our_acknowledgement(tmp_path: Path, flush: str) -> None:
    async def work(learner: Learner) -> None:
        await learner.until(lambda: send_code(apache, 1) == SUCCESS, "acknowledged")
        for number in range(2, 30):
            assert await asyncio.to_thread(send_code, apache, number) == SUCCESS
            assert learner.store.durable_offset == learner.store.max_offset or flush[0] == "A"

    keys = KEYS | {"inSyncReplicas": "2", "syncFlushTimeout": "10000", "slaveTimeout": "10000"}
    with ApacheController(VERSION, tmp_path / "controller") as controller:
        apache = ApacheMember(controller, tmp_path / "apache", keys=keys)
        with apache:
            apache.create_topic(TOPIC)
            assert send_code(apache, 0) in NO_REPLICA
            with_learner(tmp_path / "replica", apache, work, flush_disk_type=flush)
            assert send_code(apache, 30) in NO_REPLICA
