"""Broker process under attack, and its use of memory and file descriptors."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.child_process import Child
from tests.support.duemq_server import ROOT, start_command
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.server import write_properties
from tests.support.wait_until import until

START_S = 240.0  # the first start may compile kernels
MIB = 1 << 20


class Target:
    """Broker process under attack.

    Attributes:
        port: Port of the broker.
        metrics_port: Port of the metrics.
        child: Process of the broker.
    """

    def __init__(self, home: Path, *, descriptors: int | None = None, **keys: str) -> None:
        _, self.port, _, self.metrics_port = free_ports(4)  # VIP is 2 below, replicas 1 above
        defaults = {
            "brokerName": "target",
            "listenPort": str(self.port),
            "brokerIP1": LOOPBACK,
            "bindAddress": LOOPBACK,
            "vipChannelEnable": "false",
            "storePathRootDir": str(home / "store"),
            "embeddedNamesrvEnable": "false",
            "metricsPromExporterPort": str(self.metrics_port),
            "mappedFileSizeCommitLog": str(64 << 20),
            "mappedFileSizeConsumeQueue": "600000",
            "maxHashSlotNum": "10000",
            "maxIndexNum": "40000",
        }
        conf = write_properties(home / "broker.conf", defaults | keys)
        command = start_command(conf)
        if descriptors is not None:
            limit = f"ulimit -n {descriptors}; exec {shlex.join(command)}"
            command = ["sh", "-c", limit]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PYTHONPATH": os.pathsep.join(paths), "DUEMQ_CLASS_ARCHIVE": "off"}
        self.child = Child("target", command, log_path=home / "broker.log", env=env)

    def wait(self) -> None:
        """Wait until the broker listens."""

        def ready() -> bool:
            self.child.must_run()
            return listening(self.port) and listening(self.metrics_port)

        until(ready, seconds=START_S, what="the target listens")

    @property
    def anonymous_bytes(self) -> int:
        """Return the anonymous memory of the broker."""
        return self.child.memory_bytes()["anonymous"]

    @property
    def descriptors(self) -> int:
        """Return the number of open file descriptors."""
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    @property
    def sockets(self) -> int:
        """Return the number of open sockets."""
        found = 0
        for descriptor in Path(f"/proc/{self.child.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(descriptor.readlink()).startswith("socket:")
        return found

    @property
    def threads(self) -> int:
        """Return the number of threads."""
        return len(os.listdir(f"/proc/{self.child.pid}/task"))

    @property
    def log(self) -> str:
        """Return the broker's log."""
        return self.child.log_path.read_text(errors="replace")


@contextmanager
def attacked(home: Path, *, descriptors: int | None = None, **keys: str) -> Iterator[Target]:
    """Run a target; at its end check that its log has no traceback."""
    target = Target(home, descriptors=descriptors, **keys)
    try:
        target.wait()
        yield target
    finally:
        target.child.stop()
