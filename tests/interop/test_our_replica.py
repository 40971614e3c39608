"""DueMQ as the replica of Apache's broker: equal log, readable, no deliveries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.admin_process import mqadmin
from tests.interop.apache import NEWEST, VERSIONS, Apache
from tests.interop.replicas import (
    COPIED_S,
    NO_REPLICA,
    ApacheReplica,
    OurReplica,
    log_bytes,
    send_code,
    wait_code,
    wait_copied,
)
from tests.interop.store_work import KEYS, TOPIC, Ledger, cursors_of_running, pull, verify
from tests.support.commands import duemq
from tests.support.extended import extended
from tests.support.remoting_requests import SUCCESS, call
from tests.support.server import Server
from tests.support.wait_until import until

SLAVE_NOT_AVAILABLE, SERVICE_NOT_AVAILABLE = 11, 14
END_TRANSACTION = 37
VERDICTS = 0, 8, 12  # unknown, commit, rollback


@pytest.mark.extended
@pytest.mark.parametrize("version", [*VERSIONS, extended(NEWEST)])
def test_a_replica_has_the_log_of_its_apache_master(version: str, tmp_path: Path) -> None:
    ledger = Ledger()
    with Apache(version, tmp_path / "apache", keys=KEYS) as apache:
        apache.create_topic(TOPIC)
        ledger.send(apache, "before", 600)
        ledger.send(apache, "soon", 30, level=1)
        with OurReplica(apache, tmp_path / "replica", keys=KEYS) as replica:
            ledger.send(apache, "while", 200)
            ledger.send(apache, "later", 30, level=2)
            ledger.wait(apache)
            wait_copied(apache, replica)
            ledger.check(replica)
            ledger.send(apache, "pending", 10, level=3)
            ledger.wait_queued(apache)
            wait_copied(apache, replica)
            apache.kill()  # before it delivers the pending messages
    assert log_bytes(apache) == log_bytes(replica)
    verify(replica.store_dir)


@pytest.mark.extended
@pytest.mark.parametrize("version", [*VERSIONS, extended(NEWEST)])
def test_a_replica_ends_no_transaction(version: str, tmp_path: Path) -> None:
    """Our replica gives the same response as Apache's to commit, rollback and unknown."""
    codes = []
    with Apache(version, tmp_path / "apache", keys=KEYS) as apache:
        for replica in (
            OurReplica(apache, tmp_path / "ours", keys=KEYS),
            ApacheReplica(version, apache, tmp_path / "theirs", keys=KEYS),
        ):
            with replica:
                codes.append([_end_code(replica, verdict) for verdict in VERDICTS])
    assert codes == [[SLAVE_NOT_AVAILABLE] * len(VERDICTS)] * 2


def _end_code(server: Server, verdict: int) -> int:
    fields = {
        "producerGroup": "P",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": str(verdict),
        "fromTransactionCheck": "false",
        "msgId": "m",
    }
    return call(server.broker_port, END_TRANSACTION, fields).code


@pytest.mark.extended
@pytest.mark.parametrize(
    ("version", "flush"),
    [
        extended("4.9.7", "ASYNC_FLUSH"),
        extended("4.9.7", "SYNC_FLUSH"),
        extended("5.3.3", "ASYNC_FLUSH"),
        ("5.3.3", "SYNC_FLUSH"),
    ],
)
def test_a_sync_master_waits_for_our_replica(version: str, flush: str, tmp_path: Path) -> None:
    keys = KEYS | {
        "brokerRole": "SYNC_MASTER",
        "syncFlushTimeout": "10000",
        "slaveTimeout": "10000",
    }
    keys |= {"inSyncReplicas": "2"}
    with Apache(version, tmp_path / "apache", keys=keys) as apache:
        apache.create_topic(TOPIC)
        assert send_code(apache, 0) in NO_REPLICA
        replica = OurReplica(apache, tmp_path / "replica", keys=KEYS | {"flushDiskType": flush})
        with replica:
            wait_code(apache, SUCCESS)
            assert [send_code(apache, number) for number in range(50)] == [SUCCESS] * 50
            replica.kill()
            assert send_code(apache, 50) in NO_REPLICA
            replica.start()
            wait_code(apache, SUCCESS)
            wait_copied(apache, replica)
    assert log_bytes(apache) == log_bytes(replica)
    verify(replica.store_dir)


@pytest.mark.extended
def test_a_replica_leaves_pulls_and_sends_to_its_master(tmp_path: Path) -> None:
    with Apache("5.3.3", tmp_path / "apache", keys=KEYS) as apache:
        apache.create_topic(TOPIC)
        with OurReplica(apache, tmp_path / "replica", keys=KEYS) as replica:
            replica.keys["slaveReadEnable"] = "false"
            replica.stop_broker()
            replica.start()
            wait_code(apache, SUCCESS)
            wait_copied(apache, replica)
            response = pull(replica, TOPIC, 0, 0)
            assert (response.code, response.fields["suggestWhichBrokerId"]) == (20, "0")
            assert send_code(replica, 1) == SERVICE_NOT_AVAILABLE
            done = duemq("replicas", "--json", "-b", replica.broker_address)
            [member] = json.loads(done.stdout)
            assert (member["role"], member["state"], member["lagBytes"]) == ("SLAVE", "transfer", 0)
            assert member["haMasterAddress"].endswith(f":{apache.ha_port}")
            at = ("-b", replica.broker_address, "-n", apache.namesrv_address)
            shown = mqadmin(apache.version, apache.home, "haStatus", *at)
            assert member["haMasterAddress"] in shown


@pytest.mark.extended
@pytest.mark.parametrize("version", [*VERSIONS, extended(NEWEST)])
def test_a_replica_takes_over_when_its_apache_master_is_gone(version: str, tmp_path: Path) -> None:
    """The operator starts it with the role and the id of a master.

    The levels in its configuration are shorter than the master's; no message may be early.
    """
    ledger, shorter = Ledger(), {"messageDelayLevel": "1s 1s 1s"}
    with Apache(version, tmp_path / "apache", keys=KEYS) as apache:
        apache.create_topic(TOPIC)
        replica = OurReplica(apache, tmp_path / "replica", keys=KEYS | shorter)
        with replica:
            ledger.send(apache, "before", 100)
            ledger.send(apache, "soon", 30, level=1)
            ledger.wait(apache)
            delivered = len(ledger.of_level(1))
            until(
                lambda: cursors_of_running(replica.store_dir).get(1) == delivered,
                seconds=COPIED_S,
                what="progress of levels copied",
            )
            ledger.send(apache, "pending", 30, level=3)
            ledger.wait_queued(apache)
            wait_copied(apache, replica)
            apache.kill()
            replica.stop_broker()
            replica.keys |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
            replica.start()
            ledger.send(replica, "after", 30, level=1)
            ledger.wait(replica)
            ledger.check(replica)
    verify(replica.store_dir)
