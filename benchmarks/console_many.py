"""Views of the console with many topics and groups: of one broker, and of two by `duemq console`.

    python -m benchmarks.console many [topics] [groups]

Each broker gets the topics, and groups with committed offsets. A view is requested several times:
the first request, the best one, its bytes, and the processor time of broker or console count.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from benchmarks.many.clients import PREFIX, create_topics
from duemq.client import Admin, Client
from duemq_common.codes import RequestCode
from tests.support.child_process import Child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.wait_until import until

VIEWS: Final = (
    "/",
    "/?span=1y",
    "/topics",
    f"/topics?after={PREFIX}-05000",
    "/groups",
    "/groups/group-00001",
    "/timers",
    f"/timers?topic={PREFIX}-00001",
    "/schedules",
    "/levels",
    "/migrations",
    "/quarantine",
    "/dead-letters",
    "/audits",
    "/replicas",
    "/configuration?shown=all",
    "/messages/unknown",
)
ROUNDS: Final = 5
TOPICS_OF_A_GROUP: Final = 5
REGISTERED_S: Final = 3.0
READY_S, TIMEOUT_S = 60.0, 300.0
LIVE_PAGES, LIVE_S = 5, 20.0


async def create_groups(address: str, groups: int, topics: int) -> None:
    """Create groups, each with offsets in some topics."""
    async with Client(broker=address, timeout_s=TIMEOUT_S) as client:
        admin = Admin(client=client)
        for number in range(groups):
            name = f"group-{number:05d}"
            await admin.create_group(name)
            for index in range(TOPICS_OF_A_GROUP):
                topic = f"{PREFIX}-{(number * TOPICS_OF_A_GROUP + index) % topics:05d}"
                fields = {"consumerGroup": name, "topic": topic, "queueId": 0, "commitOffset": 0}
                await client.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def fill(server: DueMQ, topics: int, groups: int) -> None:
    """Create topics and groups."""
    create_topics(server.broker_port, topics)
    asyncio.run(create_groups(f"{LOOPBACK}:{server.broker_port}", groups, topics))


def measure(port: int, process: Child, title: str) -> None:
    """Print the figures of each view."""
    print(f"\n{title}")
    with httpx.Client(base_url=f"http://{LOOPBACK}:{port}/console", timeout=TIMEOUT_S) as client:
        for view in VIEWS:
            times, size = list[float](), 0
            cpu_s = process.cpu_seconds()
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                size = len(client.get(view).content)
                times.append(time.perf_counter() - begin)
            used_ms = (process.cpu_seconds() - cpu_s) / ROUNDS * 1e3
            first_ms, best_ms = times[0] * 1e3, min(times) * 1e3
            text = f"first {first_ms:4.0f}  best {best_ms:4.0f} ms  {used_ms:4.0f} ms of processor"
            print(f"{view:28s} {text}  {size:7,} bytes", flush=True)


def measure_live(port: int, process: Child) -> None:
    """Print the share of a core that open overviews take."""
    shares: list[float] = []
    for count in (0, LIVE_PAGES):
        with open_overviews(port, count):
            cpu_s, begin = process.cpu_seconds(), time.perf_counter()
            time.sleep(LIVE_S)
            shares.append((process.cpu_seconds() - cpu_s) / (time.perf_counter() - begin))
    print(f"{LIVE_PAGES} open overviews: {shares[1] - shares[0]:.1%} of a core")


@contextmanager
def open_overviews(port: int, count: int) -> Iterator[None]:
    """Keep live pages open while the block is active; their sockets get what fits."""
    with httpx.Client(base_url=f"http://{LOOPBACK}:{port}/console", timeout=TIMEOUT_S) as client:
        requests = [client.build_request("GET", "/events/?span=1h") for _ in range(count)]
        responses = [client.send(request, stream=True) for request in requests]
        try:
            yield
        finally:
            for response in responses:
                response.close()


@contextmanager
def console_of(namesrv: str, port: int, folder: Path) -> Iterator[Child]:
    """Run `duemq console` while the block is active."""
    command = [sys.executable, "-m", "duemq", "console", "--namesrv", namesrv, "--port", str(port)]
    console = Child("duemq console", command, log_path=folder / "console.log")
    try:
        until(lambda: listening(port), seconds=READY_S, what="the console")
        yield console
    finally:
        console.stop()


def main(topics: int = 10_000, groups: int = 2_000) -> None:
    """Measure one broker's console, and that of two brokers."""
    port, other_port = free_ports(2)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "second").mkdir()
        with DueMQ(root, keys={"consolePort": str(port)}) as first:
            until(lambda: listening(port), seconds=READY_S, what="the console")
            fill(first, topics, groups)
            measure(port, first.broker, f"{topics:,} topics and {groups:,} groups, one broker")
            measure_live(port, first.broker)
            second = DueMQ(root / "second", keys={"brokerName": "second"})
            both = f"{first.namesrv_address};{second.namesrv_address}"
            second.keys = {**second.keys, "namesrvAddr": both}
            with second:
                fill(second, topics, groups)
                time.sleep(REGISTERED_S)
                with console_of(first.namesrv_address, other_port, root) as console:
                    measure(other_port, console, "two such brokers, duemq console")
