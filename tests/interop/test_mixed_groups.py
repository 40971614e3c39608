"""Groups of an Apache and a DueMQ broker: each as master of the other, and diverged logs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duemq.configuration.controller_config import EPOCH_FILE
from duemq.replication.epoch_file import Epochs, read_epochs
from tests.interop.apache_controller import ApacheController, ApacheMember, OurMember
from tests.interop.replicas import COPIED_S, NO_REPLICA, send_code
from tests.interop.store_work import KEYS, TOPIC, Ledger, pull_topic, verify
from tests.support.extended import extended
from tests.support.server import Server
from tests.support.wait_until import until

VERSION = "5.3.3"
GROUP_KEYS = KEYS | {
    "timerFlushIntervalMs": "1000",
    "controllerHeartBeatTimeoutMills": "6000",
    "allAckInSyncStateSet": "true",
    "slaveTimeout": "6000",
    "syncFlushTimeout": "6000",
}
LOST = range(1_000, 1_010)  # numbers of messages that only the former master has
Member = Callable[[ApacheController, Path], ApacheMember | OurMember]


def apache(controller: ApacheController, home: Path) -> ApacheMember:
    """Return an Apache broker of the group."""
    return ApacheMember(controller, home, keys=GROUP_KEYS)


def ours(controller: ApacheController, home: Path) -> OurMember:
    """Return a DueMQ broker of the group."""
    return OurMember(controller, home, keys=GROUP_KEYS)


def log_of(server: Server) -> bytes:
    """Return the log without the zeros at the end of its files."""
    files = sorted((server.store_dir / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def epochs_of(server: Server) -> Epochs:
    """Return the epochs of a member's log."""
    return read_epochs(server.store_dir / EPOCH_FILE)


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped by a signal."""
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {text.rpartition(")")[2].split()[0] for text in states} == {"T"}


def wait_equal(*servers: Server) -> None:
    """Wait until the logs of all members are equal."""
    until(
        lambda: len({log_of(server) for server in servers}) == 1,
        seconds=COPIED_S,
        what="equal logs",
        poll_s=0.2,
    )


@pytest.mark.parametrize(
    ("version", "first", "second"),
    [
        extended("5.3.3", ours, apache, id="5.3.3-ours-apache"),
        extended("5.3.3", apache, ours, id="5.3.3-apache-ours"),
        extended("5.5.0", ours, apache, id="5.5.0-ours-apache"),
        extended("5.5.0", apache, ours, id="5.5.0-apache-ours"),
    ],
)
def test_the_replica_of_a_mixed_group_takes_over_and_back(
    version: str, first: Member, second: Member, tmp_path: Path
) -> None:
    ledger = Ledger()
    with ApacheController(version, tmp_path / "controller") as controller:
        one, two = first(controller, tmp_path / "one"), second(controller, tmp_path / "two")
        with one, two:
            one.create_topic(TOPIC)
            ledger.send(one, "first", 300)
            controller.wait_in_sync(one, 2)
            ledger.send(one, "both", 50)
            wait_equal(one, two)
            one.kill()
            controller.wait_in_sync(two, 1)
            # The former master may have been killed before this topic was copied.
            two.create_topic(TOPIC)
            ledger.send(two, "second", 50)
            one.start()
            controller.wait_in_sync(two, 2)
            ledger.send(two, "again", 50)
            wait_equal(one, two)
            two.kill()
            controller.wait_in_sync(one, 1)
            one.create_topic(TOPIC)
            ledger.send(one, "back", 50)
            ledger.wait(one)
            ledger.check(one)
            two.start()
            controller.wait_in_sync(one, 2)
            wait_equal(one, two)
            assert epochs_of(one) == epochs_of(two)
            assert len(epochs_of(one).entries) == 3
    verify((one if isinstance(one, OurMember) else two).store_dir)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("first", "second"), [(ours, apache), (apache, ours)], ids=["ours-apache", "apache-ours"]
)
def test_a_former_master_with_a_longer_log_is_truncated(
    first: Member, second: Member, tmp_path: Path
) -> None:
    """Its last messages reached no other member and were not acknowledged."""
    ledger = Ledger()
    with ApacheController(VERSION, tmp_path / "controller") as controller:
        one, two = first(controller, tmp_path / "one"), second(controller, tmp_path / "two")
        with one, two:
            one.create_topic(TOPIC)
            ledger.send(one, "first", 300)
            controller.wait_in_sync(one, 2)
            wait_equal(one, two)
            end = len(log_of(one))
            # Once all of its threads are stopped, what it receives is lost with it.
            os.kill(two.broker.pid, signal.SIGSTOP)
            until(
                lambda: is_stopped(two.broker.pid), seconds=COPIED_S, what="the broker is stopped"
            )
            with ThreadPoolExecutor(len(LOST)) as pool:
                codes = list(pool.map(lambda number: send_code(one, number), LOST))
            assert set(codes) <= set(NO_REPLICA)
            assert len(log_of(one)) > end
            one.kill()
            two.kill()
            two.start()
            controller.wait_in_sync(two, 1)
            # The former master may have been killed before this topic was copied.
            two.create_topic(TOPIC)
            ledger.send(two, "second", 50)
            one.start()
            controller.wait_in_sync(two, 2)
            wait_equal(one, two)
            assert epochs_of(one) == epochs_of(two)
            bodies = [record.body for record in pull_topic(two)]
            assert sorted(bodies) == sorted(body.encode() for body in ledger.levels)
    verify((one if isinstance(one, OurMember) else two).store_dir)
