"""Apache's controller inside its name server, and Apache brokers that are members of its groups.

ApacheController   one process: name server and controller (DLedger of one node)
ApacheMember       an Apache broker in controller mode, registered with both
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.interop.admin_process import mqadmin
from tests.interop.apache import Apache, java_process, write_logging
from tests.support.child_process import Child, wait_for_child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.remoting_requests import call
from tests.support.requirements import need_commands
from tests.support.server import BROKER_NAME, READY_S, Server, write_properties
from tests.support.wait_until import until

EXCHANGE_BROKER_HA_INFO, GET_REPLICA_INFO, GET_METADATA_INFO = 906, 1004, 1005
UNASSIGNED = "-1"  # the controller assigns the broker's id


@dataclass(frozen=True, slots=True)
class Group:
    """A group as the controller sees it.

    Attributes:
        master: `host:port` of the master; empty: there is none.
        in_sync: Ids of the sync state set.
    """

    master: str
    epoch: int
    in_sync: frozenset[int]


class ApacheController:
    """Name server with a controller; a context manager.

    Args:
        keys: Additional configuration keys, such as `enableElectUncleanMaster`.
    Attributes:
        version: Version of the jars.
    """

    def __init__(self, version: str, home: Path, *, keys: Mapping[str, str] | None = None) -> None:
        need_commands("java")
        self.version, self.home, self.keys = version, home, dict(keys or {})
        self.namesrv_port, self.controller_port = free_ports(2)
        self._process: Child | None = None
        write_logging(home)

    @property
    def namesrv_address(self) -> str:
        """`host:port` of the name server."""
        return f"{LOOPBACK}:{self.namesrv_port}"

    @property
    def address(self) -> str:
        """`host:port` of the controller."""
        return f"{LOOPBACK}:{self.controller_port}"

    @property
    def member_keys(self) -> dict[str, str]:
        """Configuration keys of a broker that is a member of a group of this controller."""
        return {
            "enableControllerMode": "true",
            "controllerAddr": self.address,
            "namesrvAddr": self.namesrv_address,
            "brokerId": UNASSIGNED,
            "brokerRole": "SLAVE",
        }

    @property
    def process(self) -> Child:
        """The process."""
        assert self._process is not None, "the controller was not started"
        return self._process

    def start(self) -> None:
        """Start the process and wait until the controller is the leader.

        Raises:
            RuntimeError: The process ended; the message contains the end of its log.
            WaitedTooLong: The controller did not become the leader in time.
        """
        keys = {
            "listenPort": str(self.namesrv_port),
            "bindAddress": LOOPBACK,
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home / "controller"),
            "mappedFileSize": str(4 << 20),
            "scanNotActiveBrokerInterval": "1000",
            "scanInactiveMasterInterval": "1000",
        }
        conf = write_properties(self.home / "namesrv.conf", keys | self.keys)
        self._process = java_process(
            self.version, self.home, "controller", "namesrv.NamesrvStartup", conf, ["-Xmx512m"]
        )
        wait_for_child(
            self._process,
            self.is_leader,
            seconds=READY_S,
            what=f"controller {self.version} on {self.controller_port}",
        )

    def is_leader(self) -> bool:
        """Return whether the name server listens and the controller is the leader."""
        if not (listening(self.namesrv_port) and listening(self.controller_port)):
            return False
        response = call(self.controller_port, GET_METADATA_INFO, {})
        return response.fields.get("isLeader") == "true"

    def group(self) -> Group:
        """Return the group of the brokers that tests start."""
        response = call(self.controller_port, GET_REPLICA_INFO, {"brokerName": BROKER_NAME})
        fields, body = response.fields, json.loads(response.body or b"{}")
        return Group(
            fields.get("masterAddress", ""),
            int(fields.get("masterEpoch", 0)),
            frozenset(body.get("syncStateSet", ())),
        )

    def wait_in_sync(self, master: Server, count: int) -> Group:
        """Wait until `master` serves and `count` members are in sync; return the group."""

        def found() -> Group | None:
            group = self.group()
            is_ready = group.master == master.broker_address and len(group.in_sync) == count
            return group if is_ready and serves_as_master(master) else None

        what = f"{master.name} master of {count} members in sync"
        return until(found, seconds=READY_S, what=what, poll_s=0.2)

    def admin(self, *arguments: str) -> str:
        """Run `mqadmin` of this version; return its output."""
        return mqadmin(self.version, self.home, *arguments)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.process.kill()

    def stop(self) -> None:
        """Stop the process cleanly."""
        if self._process is not None:
            self._process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill the process: a clean stop takes 8 s, and no test reads what it stores."""
        if self._process is not None:
            self._process.kill()


def serves_as_master(server: Server) -> bool:
    """Return whether a broker serves as master, by its open replication port."""
    try:
        response = call(server.broker_port, EXCHANGE_BROKER_HA_INFO, {})
    except OSError:  # DueMQ closes its port during a role change
        return False
    return bool(response.fields.get("masterHaAddress"))


class ApacheMember(Apache):
    """Apache's broker as a member of a group; `start` waits until the group has a master.

    Its name server is the controller's process, which the test starts and stops.
    """

    def __init__(
        self,
        controller: ApacheController,
        home: Path,
        *,
        keys: Mapping[str, str] | None = None,
        store_dir: Path | None = None,
    ) -> None:
        keys = controller.member_keys | dict(keys or {})
        super().__init__(controller.version, home, keys=keys, store_dir=store_dir)
        self.namesrv_port = controller.namesrv_port

    def start_namesrv(self) -> None:
        """Do nothing: the controller's process is the name server."""


class OurMember(DueMQ):
    """DueMQ broker as a member of a group; its name server is the controller's process."""

    def __init__(
        self, controller: ApacheController, home: Path, *, keys: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(home, keys=controller.member_keys | dict(keys or {}))
        self.namesrv_port = controller.namesrv_port
        self.keys |= {"haListenPort": str(self.ha_port), "embeddedNamesrvEnable": "false"}
