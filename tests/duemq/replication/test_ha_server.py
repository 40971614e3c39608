"""The HA server against replicas that are slow, wrong, hostile, or many."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from duemq.configuration.ha_server_config import HaServerConfig
from duemq.configuration.replication_config import ReplicationConfig
from duemq.net.allowed_networks import Sources
from duemq.replication import ha_server
from duemq.replication.ha_server import HaServer
from duemq.replication.layout import REPORT
from duemq.replication.replica_connection import COLLECT_MS
from duemq_common.clock import FakeClock
from message_store.store import MessageStore
from tests.duemq.replication.test_ha_client import until
from tests.duemq.test_sync_flush import disk as disk
from tests.message_store.replication.test_raw_append import FILE_BYTES, fill, log_of
from tests.support.ha_peer import Peer, connect
from tests.support.stores import open_store

SYNC, ASYNC = ReplicationConfig(role="SYNC_MASTER"), ReplicationConfig()


@pytest.fixture(autouse=True)
def stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ha_server, "FINISH_S_MAX", 0)


async def turns() -> None:
    """Let the server do what it can do now."""
    for _ in range(20):
        await asyncio.sleep(0)


class Bench:
    """A master with a log, and its HA server."""

    def __init__(
        self, store: MessageStore, server: HaServer, clock: FakeClock, configs: list[HaServerConfig]
    ) -> None:
        self.store, self.server, self.clock, self.configs = store, server, clock, configs
        self.open = AsyncExitStack()

    async def connect(self, *offsets: int) -> Peer:
        """Return a connected replica that has reported these offsets."""
        peer = await connect(self.server.port, *offsets)
        self.open.callback(peer.writer.close)
        return peer


def first_offset(bench: Bench) -> int | None:
    """Return the log offset that the first replica has reported, None before its connection."""
    connections = bench.server.connections
    return connections[0].offset if connections else None


def first_transferred(bench: Bench) -> int:
    """Return the number of bytes transferred to the first replica, 0 before its connection."""
    connections = bench.server.connections
    return connections[0].transferred if connections else 0


Work = Callable[[Bench], Awaitable[None]]


def with_master(
    root: Path,
    work: Work,
    *,
    count: int = 400,
    role: ReplicationConfig | None = None,
    store_keys: dict[str, Any] | None = None,
    **keys: Any,
) -> None:
    """Run a master with `count` messages in its log, and some work on it."""
    clock = FakeClock()

    async def main() -> None:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        configs = [HaServerConfig(**keys)]
        with bound, open_store(root, clock, **(store_keys or {})) as store:
            fill(store, count)
            server = HaServer(bound, store, role or SYNC, lambda: configs[-1], clock)
            bench = Bench(store, server, clock, configs)
            async with bench.open, server.running():
                await work(bench)

    asyncio.run(main())


# -- transfers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [0, 1])
@pytest.mark.parametrize("size", [1_024, 32 << 10, 1 << 20])
def test_an_empty_replica_gets_the_log_from_its_first_offset(
    tmp_path: Path, report: int, size: int
) -> None:
    async def work(bench: Bench) -> None:
        peer = await bench.connect(report)
        await peer.copy(bench.store.max_offset)
        assert bytes(peer.log) == log_of(bench.store)[report:]
        assert peer.transfers[0][0] == report
        for offset, taken in peer.transfers:
            assert 0 < taken <= size
            assert offset // FILE_BYTES == (offset + taken - 1) // FILE_BYTES

    with_master(tmp_path, work, transfer_bytes_max=size)


def test_a_replica_continues_where_its_log_ends_also_inside_a_record(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        peer = await bench.connect(70_001)
        await peer.copy(bench.store.max_offset)
        assert bytes(peer.log) == log_of(bench.store)[70_001:]

    with_master(tmp_path, work)


@pytest.mark.parametrize("role", [SYNC, ASYNC], ids=["sync", "async"])
def test_what_is_appended_is_transferred_at_once_if_messages_wait_for_it(
    tmp_path: Path, role: ReplicationConfig
) -> None:
    """Otherwise it is collected for some milliseconds."""

    async def work(bench: Bench) -> None:
        end = bench.store.max_offset
        peer = await bench.connect(end)
        await until(lambda: first_offset(bench) == end)
        bench.clock.advance(COLLECT_MS)
        for number in range(400, 403):
            fill(bench.store, 1, first=number)
            await turns()
        if role is ASYNC:
            bench.clock.advance(COLLECT_MS)
        await peer.copy(bench.store.max_offset)
        assert bytes(peer.log) == log_of(bench.store)[end:]
        assert peer.transfers[0][0] == end
        assert len(peer.transfers) == (3 if role is SYNC else 2)

    with_master(tmp_path, work, role=role)


def test_an_empty_master_waits_for_its_first_message(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        empty, ours = await bench.connect(0), await bench.connect(1)
        await until(lambda: all(each.offset is not None for each in bench.server.connections))
        assert [each.offset for each in bench.server.connections] == [0, 1]
        fill(bench.store, 3)
        for peer in (empty, ours):
            await peer.copy(bench.store.max_offset)
        assert bytes(empty.log)[1:] == bytes(ours.log)

    with_master(tmp_path, work, count=0)


def test_with_sync_flush_only_synced_bytes_are_transferred(
    tmp_path: Path, disk: threading.Event
) -> None:
    """A replica that has more than its master after a power cut cannot follow it again."""

    async def work(bench: Bench) -> None:
        bench.store.flush()
        synced = bench.store.max_offset
        peer = await bench.connect(synced)
        await until(lambda: first_offset(bench) == synced)
        disk.clear()
        fill(bench.store, 3, first=400)
        await asyncio.sleep(0)
        bench.clock.advance(5_000)
        assert await peer.transfer() == (synced, 0)
        disk.set()
        await peer.copy(bench.store.max_offset)

    with_master(tmp_path, work, store_keys={"flush_disk_type": "SYNC_FLUSH"})


@pytest.mark.extended
def test_a_long_log_is_copied_by_threads_and_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        peer = await bench.connect(0)
        await until(lambda: first_transferred(bench) > 1 << 20)
        fill(bench.store, 100, first=20_000)  # while the socket is full
        await peer.copy(bench.store.max_offset)
        assert bytes(peer.log) == log_of(bench.store)

    with_master(tmp_path, work, count=20_000)


# -- time ---------------------------------------------------------------------------------------


def test_an_idle_connection_gets_heartbeats(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        end = bench.store.max_offset
        peer = await bench.connect(end)
        await until(lambda: first_offset(bench) == end)
        for _ in range(3):
            bench.clock.advance(4_999)
            bench.clock.advance(1)
            assert await peer.transfer() == (end, 0)
            peer.report(end)
            read_ms = bench.clock.now_ms()
            await until(lambda at=read_ms: bench.server.connections[0].reported_ms == at)  # type: ignore[misc]

    with_master(tmp_path, work)


def test_a_changed_configuration_applies_without_a_report(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        await bench.connect(bench.store.max_offset)
        await until(lambda: first_offset(bench) is not None)
        await turns()
        assert not bench.store.replicated.is_possible
        bench.configs.append(HaServerConfig(in_sync_replicas=2))
        bench.clock.advance(SYNC.heartbeat_ms)
        await until(lambda: bench.store.replicated.is_possible)

    with_master(tmp_path, work, in_sync_replicas=3)


def test_a_replica_that_has_not_asked_gets_nothing(tmp_path: Path) -> None:
    """Apache's replicas send a request 5 s after they connected."""

    async def work(bench: Bench) -> None:
        peer = await bench.connect()
        await until(lambda: bench.server.connections)
        for _ in range(3):
            bench.clock.advance(6_000)
            await asyncio.sleep(0)
        peer.report(0)
        await peer.copy(bench.store.max_offset)
        assert peer.transfers[0] == (0, peer.transfers[0][1])
        assert peer.transfers[0][1]

    with_master(tmp_path, work)


@pytest.mark.parametrize("reads", [True, False])
def test_a_silent_replica_is_left(tmp_path: Path, reads: bool) -> None:
    """Also one that does not read, so that the socket is full."""

    async def work(bench: Bench) -> None:
        peer = await bench.connect(0)
        await until(lambda: first_transferred(bench))
        if reads:
            await peer.copy(bench.store.max_offset)
        bench.clock.advance(20_000)
        await until(lambda: not bench.server.connections)
        assert "no report in 20000 ms" in bench.server.failure

    with_master(tmp_path, work, count=400 if reads else 20_000)


# -- bad input ----------------------------------------------------------------------------------

WRONG = {
    "acknowledgement beyond the log": lambda end: REPORT.pack(end + 1),
    "the replica's log ends at 5135603447292250196": lambda end: b"GET / HTTP/1.1",
    "after 0": lambda end: REPORT.pack(-1),
    "this is not Apache's HA protocol": lambda end: REPORT.pack(end) + REPORT.pack(end - 1),
    "closed the connection": lambda end: b"",
}


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_replica_is_named_and_the_others_go_on(why: str, tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        good = await bench.connect(0)
        bad = await bench.connect()
        bad.writer.write(WRONG[why](bench.store.max_offset))  # type: ignore[no-untyped-call]
        bad.writer.write_eof()
        await bad.closed()
        await until(lambda: bench.server.failure)
        assert why in bench.server.failure
        fill(bench.store, 3, first=400)
        await good.copy(bench.store.max_offset)

    with_master(tmp_path, work)


def test_a_later_acknowledgement_beyond_the_log_confirms_nothing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        end = bench.store.max_offset
        peer = await bench.connect(end, 1 << 40)
        await peer.closed()
        fill(bench.store, 1, first=400)
        assert bench.store.replicated.offset <= end

    with_master(tmp_path, work, role=SYNC)


def test_a_replica_whose_files_have_expired_is_refused(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.store.log.detach_first().erase()
        peer = await bench.connect(70)
        await peer.closed()
        assert "ends at 70, before this log begins (65536)" in bench.server.failure
        for offset in (0, FILE_BYTES):  # an empty replica, and one that ends where the log begins
            other = await bench.connect(offset)
            assert (await other.transfer())[0] == FILE_BYTES

    with_master(tmp_path, work)


def test_a_flood_of_reports_leaves_room_for_others(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        flood = await bench.connect(0)
        for _ in range(1_000):
            flood.report(*[0] * 1_000)
        good = await bench.connect(0)
        await good.copy(bench.store.max_offset)
        assert len(bench.server.connections) == 2

    with_master(tmp_path, work)


def test_reports_in_pieces_are_joined(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        peer = await bench.connect()
        for byte in REPORT.pack(70_000):
            await until(lambda: bench.server.connections)
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert (await peer.transfer())[0] == 70_000

    with_master(tmp_path, work)


def test_more_replicas_than_allowed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ha_server, "REPLICAS_MAX", 2)

    async def work(bench: Bench) -> None:
        kept = [await bench.connect(0) for _ in range(2)]
        await until(lambda: len(bench.server.connections) == 2)
        await (await bench.connect(0)).closed()
        for peer in kept:
            await peer.copy(bench.store.max_offset)
        kept[0].writer.close()
        await until(lambda: len(bench.server.connections) == 1)
        await (await bench.connect(0)).copy(bench.store.max_offset)

    with caplog.at_level(logging.WARNING):
        with_master(tmp_path, work)
    assert "limit of 2 connected replicas is reached" in caplog.text


def test_an_address_that_is_not_named_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(bench: Bench) -> None:
        monkeypatch.setattr(Sources, "allows", lambda self, address: False)
        await (await bench.connect(0)).closed()
        assert not bench.server.connections

    with_master(tmp_path, work)
    assert "its address is not in replicasFrom" in caplog.text


# -- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_stop_lets_replicas_have_the_last_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acknowledges: bool
) -> None:
    monkeypatch.setattr(ha_server, "FINISH_S_MAX", 60 if acknowledges else 0.01)
    peers: list[Peer] = []

    async def work(bench: Bench) -> None:
        peer = await bench.connect(0)
        await peer.transfer()
        fill(bench.store, 100, first=400)
        peers.append(peer)
        if acknowledges:
            following = asyncio.ensure_future(peer.follow())
            bench.open.push_async_callback(ended, following)

    async def ended(following: asyncio.Future[None]) -> None:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await following

    with_master(tmp_path, work)
    with open_store(tmp_path) as store:
        assert (sum(peers[0].transfers[-1]) == store.max_offset) == acknowledges
