"""Ends of a replica's connection."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from duemq.replication.master_protocol import DefaultHa
from duemq.replication.replica_connection import COLLECT_MS, ReplicaConnection
from duemq_common.clock import FakeClock
from duemq_common.errors import ReplicationFault
from tests.message_store.replication.test_raw_append import fill
from tests.support.fakes import settle
from tests.support.ha_peer import TURN_S_MAX
from tests.support.stores import open_store


class LostSocket(socket.socket):
    """A socket whose other end was killed; a send fails first, the receive directly after it."""

    other: socket.socket

    def recv(self, *arguments: Any) -> bytes:
        raise ConnectionResetError("reset")

    def sendmsg(self, *arguments: Any) -> int:
        self.other.send(b"x")  # makes this socket readable
        raise BrokenPipeError("broken")


def test_a_connection_lost_in_both_directions_leaves_no_error_unretrieved(tmp_path: Path) -> None:
    unretrieved: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: unretrieved.append(found))
        ours, theirs = socket.socketpair()
        lost = LostSocket(fileno=ours.detach())
        lost.setblocking(False)
        lost.other = theirs
        clock = FakeClock()
        with theirs, open_store(tmp_path, clock) as store, ThreadPoolExecutor(1) as bulk:
            fill(store, 10)
            protocol = DefaultHa()
            protocol.start = 0
            connection = ReplicaConnection(
                lost,
                "replica",
                store,
                protocol,
                clock,
                transfer_bytes=1_024,
                heartbeat_ms=1_000,
                idle_ms=1_000,
                on_report=lambda: None,
                bulk=bulk,
            )
            clock.advance(COLLECT_MS)
            with pytest.raises(BrokenPipeError):
                await connection.run()

    asyncio.run(main())
    gc.collect()
    assert unretrieved == []


def test_a_replica_is_not_silent_while_its_reports_are_not_read(tmp_path: Path) -> None:
    """After a stall, the connection was closed before the reports of the stall were read."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        clock, protocol = FakeClock(), DefaultHa()
        protocol.start = 0
        with theirs, open_store(tmp_path, clock) as store, ThreadPoolExecutor(1) as bulk:
            fill(store, 10)
            connection = ReplicaConnection(
                ours,
                "replica",
                store,
                protocol,
                clock,
                transfer_bytes=1_024,
                heartbeat_ms=1_000,
                idle_ms=1_000,
                on_report=lambda: None,
                bulk=bulk,
            )
            theirs.send(bytes(8))
            clock.advance(10_000)
            serving = asyncio.create_task(connection.run())
            await settle()
            assert not serving.done()
            clock.advance(10_000)
            with pytest.raises(ReplicationFault, match="no report in 1000 ms"):
                await serving

    asyncio.run(main())


class SlowLostSocket(LostSocket):
    """A lost socket whose send in a thread fails only when it is released."""

    released: threading.Event
    received: asyncio.Event

    def recv(self, *arguments: Any) -> bytes:
        self.received.set()
        return super().recv(*arguments)

    def sendmsg(self, *arguments: Any) -> int:
        self.other.send(b"x")
        self.released.wait(TURN_S_MAX)
        raise BrokenPipeError("broken")


def test_a_send_of_a_thread_that_fails_after_the_end_leaves_no_error_unretrieved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.replication.replica_connection.LOOP_BYTES", 0)
    unretrieved: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: unretrieved.append(found))
        ours, theirs = socket.socketpair()
        lost = SlowLostSocket(fileno=ours.detach())
        lost.setblocking(False)
        lost.other, lost.released, lost.received = theirs, threading.Event(), asyncio.Event()
        clock = FakeClock()
        with theirs, open_store(tmp_path, clock) as store, ThreadPoolExecutor(1) as bulk:
            fill(store, 10)
            protocol = DefaultHa()
            protocol.start = 0
            connection = ReplicaConnection(
                lost,
                "replica",
                store,
                protocol,
                clock,
                transfer_bytes=1_024,
                heartbeat_ms=1_000,
                idle_ms=1_000,
                on_report=lambda: None,
                bulk=bulk,
            )
            running = asyncio.create_task(connection.run())
            await lost.received.wait()
            await settle()  # the transfer is cancelled, and waits for the thread
            lost.released.set()
            with pytest.raises(ConnectionResetError):
                await running

    asyncio.run(main())
    gc.collect()
    assert unretrieved == []
