"""Sends over the HTTP API: messages a second, latency, processor time of the broker.

    python -m benchmarks.http                      64 connections, 5 s, three times
    python -m benchmarks.http --delay-ms 3600000   timers
    python -m benchmarks.http --console            through `duemq console`, a process of its own

Each connection sends one message of 100 bytes after the other. The load is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.child_process import Child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.wait_until import until

BODY_BYTES: Final = 100
TOPIC: Final = "bench_http"
READY_S: Final = 30.0
HEAD_END: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length: "


class Sender(asyncio.Protocol):
    """Connection that sends the same request again after each response.

    Attributes:
        failure: First response that was not a success.
    """

    def __init__(self, request: bytes, latencies_s: list[float]) -> None:
        self._request, self._latencies_s = request, latencies_s
        self._buffer, self._sent_s = b"", 0.0
        self._transport: asyncio.Transport | None = None
        self.failure = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(HEAD_END)
        if not end:
            return
        length = head.lower().partition(LENGTH)[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        if not head.startswith(b"HTTP/1.1 201"):
            self.failure = self._buffer
            return
        self._latencies_s.append(time.perf_counter() - self._sent_s)
        self._buffer = b""
        self._send()


async def load(port: int, connections: int, seconds: float, delay_ms: int) -> dict[str, float]:
    """Send from all connections; return messages a second and latencies."""
    message: dict[str, object] = {"topic": TOPIC, "body": "x" * BODY_BYTES}
    if delay_ms:
        message["delay_ms"] = delay_ms
    body = json.dumps(message).encode()
    head = [
        "POST /api/v1/messages HTTP/1.1",
        f"Host: {LOOPBACK}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    request = "\r\n".join([*head, "", ""]).encode() + body
    latencies_s: list[float] = []
    loop = asyncio.get_running_loop()
    senders = []
    for _ in range(connections):
        transport, sender = await loop.create_connection(
            lambda: Sender(request, latencies_s), LOOPBACK, port
        )
        senders.append((transport, sender))
    await asyncio.sleep(seconds / 5)  # connections, routes and code are warm
    latencies_s.clear()
    first_s = time.perf_counter()
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - first_s
    count = len(latencies_s)
    for transport, sender in senders:
        transport.close()
        if sender.failure:
            raise SystemExit(f"a send failed: {sender.failure.decode()}")
    ordered = sorted(latencies_s)
    return {
        "rate": count / took_s,
        "p50_ms": ordered[count // 2] * 1e3,
        "p99_ms": ordered[count * 99 // 100] * 1e3,
    }


def main(words: list[str]) -> int:
    """Start the servers, run the load, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--delay-ms", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--console", action="store_true")
    options = parser.parse_args(words)
    [port, console_port] = free_ports(2)
    keys = {"consolePort": str(port), "consoleRateMax": "0"}
    with tempfile.TemporaryDirectory() as directory, DueMQ(Path(directory), keys=keys) as server:
        if not options.console:
            measure(server.broker, port, options)
            return 0
        command = ["duemq", "console", "--namesrv", server.namesrv_address]
        command += ["--port", str(console_port)]
        child = Child(
            "duemq console",
            [sys.executable, "-m", *command],
            log_path=Path(directory) / "console.log",
        )
        try:
            measure(child, console_port, options)
        finally:
            child.stop()
    return 0


def measure(server: Child, port: int, options: argparse.Namespace) -> None:
    """Print a line for each run against a server."""
    until(lambda: listening(port), seconds=READY_S, what="the HTTP port")
    for _ in range(options.repeat):
        before_s, first_s = processor_s(server.pid), time.perf_counter()
        figures = asyncio.run(load(port, options.connections, options.seconds, options.delay_ms))
        share = (processor_s(server.pid) - before_s) / (time.perf_counter() - first_s)
        print(
            f"{figures['rate']:8,.0f} sends/s   p50 {figures['p50_ms']:.1f} ms   "
            f"p99 {figures['p99_ms']:.1f} ms   {share * 1e6 / figures['rate']:.0f} us of "
            "processor time of the server a send"
        )


def processor_s(pid: int) -> float:
    """Return the processor time of a process, in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
