"""Broker and name server as processes, of any implementation, for tests and benchmarks.

A `Server` keeps its ports and its store directory across `stop`, `kill` and `start`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.child_process import Child, wait_for_child
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.remoting_requests import create_topic, has_route

READY_S = 240.0
CLUSTER_NAME = "DefaultCluster"
BROKER_NAME = "broker-a"
TEMPLATE_TOPIC = "TBW102"  # has a route once the broker is registered
PORT_COUNT = 5  # name server, VIP (broker - 2), gRPC, broker, replication


class Server(ABC):
    """Broker and name server on loopback.

    Args:
        home: Directory of configuration files and logs.
        store_dir: storePathRootDir of the broker; by default below `home`.
        keys: Additional keys of broker.conf.
    """

    name: str
    has_timers: bool

    def __init__(
        self, home: Path, *, store_dir: Path | None = None, keys: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        self.store_dir = store_dir or home / "store"
        self.keys = dict(keys or {})
        ports = free_ports(PORT_COUNT)
        self.namesrv_port, _, self.grpc_port, self.broker_port, self.ha_port = ports
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
        """Whether the broker's process runs."""
        return self._broker is not None and self._broker.running

    def start(self) -> None:
        """Start the processes that are not running, and wait until clients can send.

        Raises:
            RuntimeError: A process ended; the message contains the end of its log.
            WaitedTooLong: The broker did not become ready in time.
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
        """Kill the broker."""
        self.broker.kill()

    def stop_broker(self) -> None:
        """Stop the broker cleanly; a separate name server keeps running."""
        self.broker.stop()

    def stop(self) -> None:
        """Stop broker and name server cleanly."""
        if self._broker is not None:
            self._broker.stop()

    def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """Create a topic at the broker, which registers it immediately."""
        create_topic(self.broker_port, topic, queue_count=queue_count)

    def describe(self) -> dict[str, str]:
        """Return a description of this server for reports."""
        return {"name": self.name, **self.keys}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @abstractmethod
    def start_namesrv(self) -> None:
        """Start the name server, if it is a separate process and not running."""

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
