"""Replication through a network that damages bytes: nothing damaged is stored or acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.apache import Apache
from tests.interop.replicas import OurReplica, log_bytes, wait_code, wait_copied
from tests.interop.store_work import KEYS, TOPIC, Ledger, verify
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.relay import Relay
from tests.support.remoting_requests import SUCCESS
from tests.support.server import Server

SYNC = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "10000"}
DAMAGES = 3


def master_of(kind: str, home: Path) -> Server:
    """Return a SYNC_MASTER: ours, or Apache's."""
    keys = KEYS | SYNC
    return DueMQ(home, keys=keys) if kind == "duemq" else Apache(kind, home, keys=keys)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["duemq", extended("5.3.3")])
def test_a_body_damaged_in_transit_is_copied_again(kind: str, tmp_path: Path) -> None:
    """Each damage ends the connection once; the master sends the record again."""
    ledger, due = Ledger(), list(range(DAMAGES))  # the same damage twice would be the master's

    def damage(data: bytes) -> bytes:
        at = data.find(b"damaged-%d-" % due[0]) if due else -1
        if at < 0:
            return data
        del due[0]
        return data[:at] + b"D" + data[at + 1 :]

    with master_of(kind, tmp_path / "master") as master, Relay(master.ha_port) as relay:
        master.create_topic(TOPIC)
        keys = KEYS | {"haMasterAddress": relay.address}
        with OurReplica(master, tmp_path / "replica", keys=keys) as replica:
            wait_code(master, SUCCESS)
            relay.change = damage
            for number in range(DAMAGES):
                ledger.send(master, f"damaged-{number}", 20)
            wait_code(master, SUCCESS)
            wait_copied(master, replica)
            assert due == []
            log = (replica.home / "broker.log").read_text()
            assert log.count("does not match its CRC") == DAMAGES, log
            replica.stop_broker()
            copied = log_bytes(replica)
            verify(replica.store_dir)
        master.stop()
    assert log_bytes(master) == copied
