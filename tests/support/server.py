"""A broker with its name server, as the tests and benchmarks see it, whoever made it.

A `Server` keeps its ports and its store directory over `stop`, `kill` and `start`, so that a test
can end a broker in any way and look at what the next start makes of the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.child_process import Child, wait_for_child
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.remoting_requests import create_topic, has_route

READY_S = 120.0
CLUSTER_NAME = "DefaultCluster"
BROKER_NAME = "broker-a"
TEMPLATE_TOPIC = "TBW102"  # routable once the broker has registered
PORT_COUNT = 5  # name server, vip (broker - 2), nothing, broker, replication


class Server(ABC):
    """One broker and the name server it registers with, on loopback.

    Args:
        home: Folder for configuration files and logs.
        store_dir: The broker's storePathRootDir; default: a folder below `home`.
        keys: More keys for broker.conf.
    """

    name: str
    has_timers: bool

    def __init__(
        self, home: Path, *, store_dir: Path | None = None, keys: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.store_dir = store_dir or home / "store"
        self.keys = dict(keys or {})
        self.namesrv_port, _, _, self.broker_port, self.ha_port = free_ports(PORT_COUNT)
        self._broker: Child | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def namesrv_address(self) -> str:
        """`host:port` of the name server."""
        return f"{LOOPBACK}:{self.namesrv_port}"

    @property
    def broker_address(self) -> str:
        """`host:port` of the broker."""
        return f"{LOOPBACK}:{self.broker_port}"

    @property
    def broker(self) -> Child:
        """The process of the broker."""
        assert self._broker is not None, f"{self.name} was not started"
        return self._broker

    @property
    def running(self) -> bool:
        """True while the broker's process lives."""
        return self._broker is not None and self._broker.running

    def start(self) -> None:
        """Start whatever does not run and return when clients can send.

        Raises:
            RuntimeError: The process ended; its last words are in the message.
            WaitedTooLong: It did not become ready.
        """
        assert not self.running, f"{self.name} runs already"
        self.store_dir.mkdir(parents=True, exist_ok=True)
        self.start_namesrv()
        self._broker = self.start_broker()
        wait_for_child(
            self._broker,
            self.ready,
            seconds=READY_S,
            what=f"{self.name} ready on {self.broker_port}",
        )

    def ready(self) -> bool:
        """Return whether the broker listens and the name server has its route."""
        return listening(self.broker_port) and has_route(self.namesrv_port, TEMPLATE_TOPIC)

    def kill(self) -> None:
        """End the broker as `kill -9` does."""
        self.broker.kill()

    def stop_broker(self) -> None:
        """End the broker in an orderly way; a name server of its own keeps running."""
        self.broker.stop()

    def stop(self) -> None:
        """End broker and name server in an orderly way."""
        if self._broker is not None:
            self._broker.stop()

    def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """Create a topic at the broker, which tells the name server at once."""
        create_topic(self.broker_port, topic, queue_count=queue_count)

    def describe(self) -> dict[str, str]:
        """Return what a report should say about this server."""
        return {"name": self.name, **self.keys}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start_namesrv(self) -> None:
        """Start the name server if it is a process of its own and does not run."""

    @abstractmethod
    def start_broker(self) -> Child:
        """Write the configuration and start the broker's process."""

    def _common_keys(self) -> dict[str, str]:
        return {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "brokerIP1": LOOPBACK,
            "listenPort": str(self.broker_port),
            "storePathRootDir": str(self.store_dir),
            "storePathCommitLog": str(self.store_dir / "commitlog"),
        }


def write_properties(path: Path, keys: Mapping[str, str]) -> Path:
    """Write `key=value` lines and return the path."""
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path
