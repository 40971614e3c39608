"""Replicas of brokers, as processes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from tests.interop.apache import Apache
from tests.interop.store_work import SEND, TOPIC, all_queues, bounds
from tests.support.duemq_server import DueMQ
from tests.support.remoting_requests import call
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

REPLICA_ID = "1"
COPIED_S = 240.0
NO_REPLICA = (10, 11, 12)  # FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT
ROLE = {"brokerRole": "SLAVE", "brokerId": REPLICA_ID, "slaveReadEnable": "true"}


class OurReplica(DueMQ):
    """DueMQ broker as the replica of a server, registered with that server's name server."""

    def __init__(self, master: Server, home: Path, *, keys: Mapping[str, str]) -> None:
        super().__init__(home, keys={**keys, **ROLE, "embeddedNamesrvEnable": "false"})
        self.namesrv_port = master.namesrv_port


class ApacheReplica(Apache):
    """Apache's broker as the replica of another server, registered with its name server."""

    def __init__(
        self, version: str, master: Server, home: Path, *, keys: Mapping[str, str]
    ) -> None:
        super().__init__(version, home, keys={**keys, **ROLE})
        self.namesrv_port = master.namesrv_port

    def start_namesrv(self) -> None:
        """Do nothing: the master has a name server."""

    def start_own_namesrv(self) -> None:
        """Start a name server that replaces the stopped one of the master."""
        super().start_namesrv()


def log_bytes(server: Server) -> dict[str, bytes]:
    """Return the commit log by file name, without the file that Apache allocates ahead."""
    files = sorted((server.store_dir / "commitlog").iterdir())
    found = {path.name: path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if data.strip(b"\0")}


def wait_copied(master: Server, replica: Server) -> None:
    """Wait until the replica's queues are as long as the master's."""
    until(
        lambda: bounds(replica, all_queues()) == bounds(master, all_queues()),
        seconds=COPIED_S,
        what="everything copied",
        poll_s=0.2,
    )


def send_code(server: Server, number: int) -> int:
    """Return the response code of a send that waits for replicas."""
    properties = f"KEYS\x01key{number}\x02UNIQ_KEY\x01U{number}\x02WAIT\x01true\x02"
    fields = {
        "producerGroup": "P",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(number % 4),
        "sysFlag": "0",
        "bornTimestamp": str(now_ms()),
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return call(server.broker_port, SEND, fields, b"body %d" % number).code


def wait_code(master: Server, code: int) -> None:
    """Wait until a send gets a given response code."""
    numbers = itertools.count()
    until(
        lambda: send_code(master, next(numbers)) == code,
        seconds=COPIED_S,
        what=f"answer {code}",
        poll_s=0.2,
    )
