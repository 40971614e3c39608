"""A broker process that is started and killed over and over, and what arrived in the end."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.crash import volatile
from tests.crash.books import PendingCounts, number_of, read_all
from tests.crash.volatile import VolatileDisk
from tests.support.child_process import Child
from tests.support.duemq_server import start_command
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.server import write_properties
from tests.support.wait_until import until

START_S, DELIVER_S = 240.0, 60.0  # the first start may compile kernels
ROOT = Path(__file__).parents[2]


class Victim:
    """One store directory whose broker is started and killed over and over.

    Args:
        keys: of the configuration, those that are not left to the lot.
    """

    def __init__(self, home: Path, seed: int, **keys: str) -> None:
        self.home, self.random, self.keys = home, random.Random(seed), keys
        self.port = free_ports(3)[1]
        self.child: Child | None = None
        self._env = {"PYTHONPATH": str(ROOT)}
        self._disk: VolatileDisk | None = None

    def on_volatile_disk(self, *, delay_ms: float) -> VolatileDisk:
        """Run the broker so that only what it syncs survives a cut; each sync takes a while."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._disk = disk = VolatileDisk(self.root, self.home / "disk")
        self._env |= {
            volatile.ROOT: str(disk.root),
            volatile.DISK: str(disk.home),
            volatile.DELAY: str(delay_ms),
        }
        return disk

    @property
    def root(self) -> Path:
        """Where its store lies."""
        return self.home / "store"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start with a configuration drawn by lot: sync or async delivery, sync or async flush."""
        keys = {
            "listenPort": str(self.port),
            "brokerIP1": LOOPBACK,
            "bindAddress": LOOPBACK,
            "storePathRootDir": str(self.root),
            "embeddedNamesrvEnable": "false",
            "metricsPromExporterPort": "0",
            "messageDelayLevel": "1s 2s 3s",
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": str(200_000),
            "maxHashSlotNum": "10000",
            "maxIndexNum": "40000",
            "timerRollWindowSlot": "3",
            "mappedFileSizeTimerLog": str(52 * 500 + 16),
            "timerPrecisionMs": self.random.choice(["1000", "1000", "100"]),
            "timerFlushIntervalMs": self.random.choice(["100", "300", "1000"]),
            "timerDeliverBatchRecords": self.random.choice(["3", "100", "2048"]),
            "flushDelayOffsetInterval": self.random.choice(["200", "1000", "10000"]),
            "enableScheduleAsyncDeliver": self.random.choice(["true", "false"]),
            "flushDiskType": self.random.choice(["ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"]),
        }
        conf = write_properties(self.home / "broker.conf", keys | self.keys)
        log = self.home / "broker.log"
        command = start_command(conf)
        if self._disk is not None:
            command[command.index("duemq")] = volatile.__name__
        self.child = Child("victim", command, log_path=log, env=self._env)
        until(self._is_up, seconds=START_S, what="the broker listens")

    def _is_up(self) -> bool:
        assert self.child is not None
        assert self.child.running, f"the broker ended; see {self.child.log_path}"
        return listening(self.port)

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()


def arrived(victim: Victim, books: PendingCounts) -> list[Any] | None:
    """Return all that has arrived; None: the broker is busy and does not answer yet."""
    try:
        return asyncio.run(read_all(books, victim.address))
    except TimeoutError:
        return None


def settled(victim: Victim, books: PendingCounts) -> bool:
    """Return whether everything acknowledged has arrived."""
    found = arrived(victim, books)
    return found is not None and books.acknowledged <= {number_of(record) for record in found}


def arrivals(victim: Victim, books: PendingCounts) -> list[Any]:
    """Start, wait until everything acknowledged has arrived, return all that ever did."""
    victim.start()
    try:
        until(
            lambda: settled(victim, books),
            seconds=DELIVER_S,
            what="all acknowledged arrive",
            poll_s=0.5,
        )
        victim.kill()  # once more: nothing may come a second time
        victim.start()
        return until(
            lambda: arrived(victim, books), seconds=DELIVER_S, what="the broker answers", poll_s=0.5
        )
    finally:
        victim.kill()
