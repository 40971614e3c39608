"""Broker process that a test starts and kills repeatedly."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash import volatile_disk
from tests.crash.sent_messages import SentMessages, number_of, read_all
from tests.crash.volatile_disk import VolatileDisk
from tests.support.child_process import Child
from tests.support.duemq_server import start_command
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.server import write_properties
from tests.support.wait_until import WaitedTooLong, until

START_S, DELIVER_S = 240.0, 240.0  # the first start may compile kernels
COUNTED_FROM_RESPONSE, RESPONSE_S = 0.8, 60.0
KILL_POLL_S = 0.001
LOG_FILE_BYTES = 4 << 20
ROOT = Path(__file__).parents[2]


class KilledBroker:
    """Store directory with a broker process.

    Args:
        keys: Configuration keys with fixed values; `start` chooses others at random.
    """

    def __init__(self, home: Path, seed: int, **keys: str) -> None:
        self.home, self.random, self.keys = home, random.Random(seed), keys
        _, _, self.port, _ = free_ports(4)  # VIP is 2 below, replicas 1 above
        self.child: Child | None = None
        self._env = {"PYTHONPATH": str(ROOT)}
        self._disk: VolatileDisk | None = None

    def on_volatile_disk(self, *, delay_ms: float) -> VolatileDisk:
        """Run the broker on a simulated disk that keeps only synced data.

        Args:
            delay_ms: Maximum of the random duration of a sync.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self._disk = disk = VolatileDisk(self.root, self.home / "disk")
        self._env |= {
            volatile_disk.ROOT: str(disk.root),
            volatile_disk.DISK: str(disk.home),
            volatile_disk.DELAY: str(delay_ms),
        }
        return disk

    @property
    def root(self) -> Path:
        """Return the store directory."""
        return self.home / "store"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the broker with a partly random configuration."""
        keys = {
            "listenPort": str(self.port),
            "brokerIP1": LOOPBACK,
            "bindAddress": LOOPBACK,
            "storePathRootDir": str(self.root),
            "embeddedNamesrvEnable": "false",
            "metricsPromExporterPort": "0",
            "messageDelayLevel": "1s 2s 3s",
            "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
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
            command[command.index("duemq")] = volatile_disk.__name__
        self.child = Child("broker", command, log_path=log, env=self._env)
        until(self._is_up, seconds=START_S, what="the broker listens")

    def _is_up(self) -> bool:
        assert self.child is not None
        assert self.child.running, f"the broker ended; see {self.child.log_path}"
        return listening(self.port)

    def kill_later(self, sent: SentMessages, least_s: float, most_s: float) -> threading.Thread:
        """Kill the broker at a random time, mostly counted from its first acknowledgement.

        On a slow machine the first one may come later than `most_s` after the start: the first
        kill of a run with an acknowledgement is always counted from it. The thread ends early if
        the broker is killed before.
        """
        wait_s, known = self.random.uniform(least_s, most_s), len(sent.acknowledged)
        counted = self.random.random() < COUNTED_FROM_RESPONSE or not known

        def kill() -> None:
            if counted:
                self._wait(lambda: len(sent.acknowledged) > known, RESPONSE_S)
            self._wait(lambda: False, wait_s)
            self.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        return killer

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition, for some time, or until the broker was killed."""
        child = self.child
        assert child is not None
        with suppress(WaitedTooLong):
            until(
                lambda: condition() or not child.running,
                seconds=seconds,
                what="a kill",
                poll_s=KILL_POLL_S,
            )

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()


def read_delivered(
    broker: KilledBroker, sent: SentMessages, offsets: dict[int, int] | None = None
) -> list[Any] | None:
    """Return the messages of the topic, see `read_all`; None if no response comes in time."""
    try:
        return asyncio.run(read_all(sent, broker.address, offsets))
    except TimeoutError:
        return None


def wait_for_deliveries(broker: KilledBroker, sent: SentMessages) -> list[Any]:
    """Start the broker, wait for all acknowledged messages, and return all delivered messages.

    The broker is killed and restarted once more before the messages are read, to detect repeated
    deliveries.
    """
    offsets, numbers = dict[int, int](), set[int]()

    def all_delivered() -> bool:
        numbers.update(map(number_of, read_delivered(broker, sent, offsets) or ()))
        return sent.acknowledged <= numbers

    broker.start()
    try:
        until(
            all_delivered,
            seconds=DELIVER_S,
            what="all acknowledged messages are delivered",
            poll_s=0.5,
        )
        broker.kill()
        broker.start()
        return until(
            lambda: read_delivered(broker, sent),
            seconds=DELIVER_S,
            what="the broker answers",
            poll_s=0.5,
        )
    finally:
        broker.kill()
