"""Resource limits of a real broker under floods of connections and incomplete requests."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from duemq.net import codec
from tests.fuzz.target import MIB, attacked
from tests.support.free_ports import LOOPBACK
from tests.support.loopback_broker import pull_request
from tests.support.running_broker import connected
from tests.support.wait_until import until

DESCRIPTORS = 256
HOSTILE_S = 5  # the broker may neither accept nor read
CONNECT_S, PAGE_S = 60, 120


def flood(stack: ExitStack, port: int, count: int) -> int:
    """Open connections that send nothing; return the number accepted."""
    opened = 0
    for _ in range(count):
        with suppress(OSError):
            connection = socket.create_connection((LOOPBACK, port), timeout=HOSTILE_S)
            stack.callback(connection.close)
            opened += 1
    return opened


@pytest.mark.finding("A6")
def test_a_flood_of_connections_stops_neither_writes_nor_the_disk(tmp_path: Path) -> None:
    async def sends(address: str, stack: ExitStack, port: int, metrics_port: int) -> list[int]:
        async with connected(address) as client:
            codes = [(await client.send("T", b"before")).code]
            await asyncio.to_thread(flood, stack, port, 2 * DESCRIPTORS)
            await asyncio.to_thread(flood, stack, metrics_port, DESCRIPTORS)
            for number in range(40):  # enough for new files of the queue and the log
                body = bytes(20_000)
                codes.append((await client.send(f"T{number % 8}", body)).code)
            return codes

    keys = {
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "100",
    }
    with attacked(tmp_path, descriptors=DESCRIPTORS, **keys) as target:
        address = f"{LOOPBACK}:{target.port}"
        with ExitStack() as stack:
            codes = asyncio.run(sends(address, stack, target.port, target.metrics_port))
        assert set(codes) == {0}
        until(lambda: target.descriptors < 120, seconds=60, what="descriptors are returned")

        async def after() -> int:
            async with connected(address) as client:
                return (await client.send("T", b"after")).code

        assert asyncio.run(after()) == 0
        assert "cannot be synced" not in target.log


@pytest.mark.extended
@pytest.mark.finding("E13")
def test_incomplete_requests_for_metrics_use_no_threads_or_descriptors(tmp_path: Path) -> None:
    with attacked(tmp_path) as target, ExitStack() as stack:
        threads = target.threads
        for _ in range(500):
            half = socket.create_connection((LOOPBACK, target.metrics_port), timeout=CONNECT_S)
            stack.callback(half.close)
            half.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert target.threads <= threads + 8
        assert target.descriptors < 200
        address = f"http://{LOOPBACK}:{target.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=PAGE_S) as page:
            assert b"duemq_up 1.0" in page.read()


@pytest.mark.finding("A20")
def test_incomplete_frames_and_unread_responses_are_limited_in_total(tmp_path: Path) -> None:
    """40 connections send 8 MiB of a frame each; 20 request 16 MiB each and read nothing."""

    async def send_some(address: str) -> list[int]:
        async with connected(address) as client:
            return [(await client.send("T", bytes(100_000))).code for _ in range(10)]

    with attacked(tmp_path, remotingMemoryMax=str(64 * MIB)) as target, ExitStack() as stack:
        address = f"{LOOPBACK}:{target.port}"
        assert set(asyncio.run(send_some(address))) == {0}
        before = target.anonymous_bytes
        pulls = b"".join(codec.encode_request(pull_request("T", 0, 0)) for _ in range(64))
        for number in range(60):
            hostile = socket.create_connection((LOOPBACK, target.port), timeout=HOSTILE_S)
            stack.callback(hostile.close)
            with suppress(OSError):  # the broker may close it while it sends
                if number % 3:
                    hostile.sendall(struct.pack("!iI", 16 * MIB, 10) + bytes(8 * MIB))
                else:
                    hostile.sendall(pulls)
            if number % 10 == 9:
                assert set(asyncio.run(send_some(address))) == {0}
        assert target.anonymous_bytes - before < 120 * MIB
        figures = f"http://{LOOPBACK}:{target.metrics_port}/metrics"
        with urllib.request.urlopen(figures, timeout=PAGE_S) as page:
            shed = re.search(rb"^duemq_connections_shed_total (\S+)", page.read(), re.M)
        assert shed is not None
        assert float(shed[1]) > 0
