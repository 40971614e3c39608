"""Apache's broker as the replica of DueMQ: the same log, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.apache import VERSIONS
from tests.interop.replicas import ApacheReplica, log_bytes, wait_copied
from tests.interop.store_work import KEYS, TOPIC, Ledger
from tests.support.duemq_server import DueMQ


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_apache_replica_gets_the_log_from_its_first_offset(
    version: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    with DueMQ(tmp_path / "master", keys=KEYS) as master:
        master.create_topic(TOPIC)
        ledger.send(master, "before", 600)
        with ApacheReplica(version, master, tmp_path / "replica", keys=KEYS) as replica:
            wait_copied(master, replica)
            ledger.send(master, "while", 200)
            ledger.send(master, "soon", 20, level=1)
            ledger.wait(master)
            wait_copied(master, replica)
    assert len(log_bytes(master)) > 2
    assert log_bytes(replica) == log_bytes(master)
