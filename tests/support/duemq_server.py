"""DueMQ broker with its embedded name server, as a process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.child_process import Child
from tests.support.free_ports import LOOPBACK, listening
from tests.support.requirements import Missing
from tests.support.server import Server, write_properties

ROOT = Path(__file__).parents[2]


def start_command(conf: Path, package: str = "duemq") -> list[str]:
    """Return the command that runs a DueMQ broker from the source tree."""
    return [sys.executable, "-m", package, "broker", "-c", str(conf)]


class DueMQ(Server):
    """DueMQ broker and name server in one process."""

    name = "duemq"
    package = "duemq"  # that is run
    env: Mapping[str, str] = MappingProxyType({})  # additional environment of the process
    has_timers = importlib.util.find_spec("timer_store") is not None

    def start_namesrv(self) -> None:
        """Do nothing: the name server is part of the broker."""

    def ready(self) -> bool:
        """Return whether clients can send; with accounts, unsigned route requests are refused."""
        if self.keys.keys() & {"authenticationEnabled", "aclEnable"}:
            return listening(self.broker_port) and listening(self.namesrv_port)
        return super().ready()

    def start_broker(self) -> Child:
        if importlib.util.find_spec("duemq.cli") is None:
            raise Missing("this checkout has no duemq.cli to start")
        keys = self._common_keys() | {
            "bindAddress": LOOPBACK,
            "namesrvAddr": self.namesrv_address,
            "embeddedNamesrvEnable": "true",
            "embeddedNamesrvPort": str(self.namesrv_port),
            "metricsPromExporterPort": "0",
        }
        conf = write_properties(self.home / "broker.conf", keys | self.keys)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return Child(
            "duemq broker",
            start_command(conf, self.package),
            log_path=self.home / "broker.log",
            env={"PYTHONPATH": os.pathsep.join(paths), **self.env},
        )
