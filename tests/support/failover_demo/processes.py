"""Child processes of the failover demo: controller, name server and brokers on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from duemq.cli.exits import Exit, fail
from tests.support.child_process import Child
from tests.support.fork_server import TOP

LOOPBACK: Final = "127.0.0.1"
LOG_SHOWN_CHARS: Final = 2_000
BROKER_CONF: Final = """\
brokerClusterName = demo
brokerName = {name}
brokerIP1 = 127.0.0.1
bindAddress = 127.0.0.1
listenPort = {port}
haListenPort = {ha_port}
vipChannelEnable = false
metricsExporterType = DISABLE
namesrvAddr = {namesrv}
enableControllerMode = true
controllerAddr = {controller}
controllerHeartBeatTimeoutMills = 3000
brokerRole = SYNC_MASTER
allAckInSyncStateSet = true
storePathRootDir = {store}
mappedFileSizeCommitLog = 67108864
maxHashSlotNum = 10000
maxIndexNum = 40000
defaultTopicQueueNums = 4
"""


async def poll(pause_s: float) -> AsyncIterator[None]:
    """Yield now and after every pause, for polling loops."""
    while True:
        yield
        await asyncio.sleep(pause_s)


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]


class Process:
    """Restartable child process with a log file."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._command, self._log = list(command), log
        self._child: Child | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.running

    async def start(self) -> None:
        """Start the process."""
        env = {"PYTHONPATH": str(TOP)}
        self._child = Child(self.name, self._command, log_path=self._log, env=env)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self._child is not None and self.is_running:
            os.kill(self._child.pid, number)

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._child is not None:
            await asyncio.to_thread(self._child.kill)

    async def stop(self) -> None:
        """Terminate the process; kill it after a timeout."""
        if self._child is not None:
            await asyncio.to_thread(self._child.stop)

    def check(self) -> None:
        """Exit with the tail of the log if the process has ended."""
        if not self.is_running:
            text = self._log.read_text(errors="replace")[-LOG_SHOWN_CHARS:]
            fail(f"{self.name} has ended:\n{text}", Exit.FOUND_FAULT)


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of the group."""

    process: Process
    address: str


def new_member(
    name: str,
    number: int,
    home: Path,
    *,
    namesrv: str,
    controller: str,
    keys: Mapping[str, str] = MappingProxyType({}),
    ports: Sequence[int] = (),
) -> Member:
    """Return a broker of the group `name`, not started.

    Args:
        keys: More of its configuration.
        ports: Port of the broker and port for replicas; default: free ports.
    """
    directory = home / f"broker-{number}"
    directory.mkdir()
    port, ha_port = ports or free_ports(2)
    conf = directory / "broker.conf"
    conf.write_text(
        BROKER_CONF.format(
            name=name,
            port=port,
            ha_port=ha_port,
            namesrv=namesrv,
            controller=controller,
            store=directory / "store",
        )
        + "".join(f"{key} = {value}\n" for key, value in keys.items())
    )
    command = [sys.executable, "-m", "duemq", "broker", "-c", str(conf)]
    process = Process(f"broker {number}", command, directory / "broker.log")
    return Member(process, f"{LOOPBACK}:{port}")
