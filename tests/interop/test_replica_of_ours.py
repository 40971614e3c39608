"""Replicas of a DueMQ master: Apache's brokers and ours copy its log and take over."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from duemq_common.codes import RequestCode
from tests.interop.admin_process import mqadmin
from tests.interop.apache import NEWEST, VERSIONS, Apache
from tests.interop.replicas import (
    NO_REPLICA,
    ApacheReplica,
    OurReplica,
    log_bytes,
    send_code,
    wait_code,
    wait_copied,
)
from tests.interop.store_work import (
    KEYS,
    QUEUE_COUNT,
    TOPIC,
    Ledger,
    due_times,
    json_of_running,
    pull_queue,
    pull_topic,
    verify,
)
from tests.interop.timer_work import TimerLedger
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.remoting_requests import SUCCESS, call
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

SYNC = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "10000"}
TIMERS = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
PROGRESS_S = 120.0
PROGRESS_COPIES = 3  # of the replica in this test
GROUP, OFFSETS_FILE = "Consumers", "config/consumerOffset.json"
GROUP_FIELDS = {"consumerGroup": GROUP, "topic": TOPIC}
QUERY_OFFSET, COMMIT_OFFSET, CREATE_GROUP = 14, 15, 200
TIMER_CHECK = struct.Struct(">4q")  # the last number of its value is masterTimerQueueOffset


@pytest.mark.extended
@pytest.mark.parametrize("version", [extended("4.9.7"), extended("5.3.3"), NEWEST])
def test_an_apache_replica_copies_the_log_and_a_sync_master_waits_for_it(
    version: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    with DueMQ(tmp_path / "master", keys=KEYS | SYNC) as master:
        master.create_topic(TOPIC)
        assert [send_code(master, number) for number in range(300)] == [11] * 300
        with ApacheReplica(version, master, tmp_path / "replica", keys=KEYS) as replica:
            wait_code(master, SUCCESS)
            ledger.send(master, "while", 200)
            ledger.send(master, "soon", 20, level=1)
            ledger.wait(master)
            if version.startswith("5."):  # the tools of 4.9.7 have no such command
                at = ("-b", master.broker_address, "-n", replica.namesrv_address)
                shown = mqadmin(version, replica.home, "haStatus", *at)
                assert "#InSyncSlaveNum\t1" in shown, shown
            replica.kill()
            assert send_code(master, 300) in NO_REPLICA
            replica.start()
            wait_code(master, SUCCESS)
            wait_copied(master, replica)
    assert len(log_bytes(master)) > 2
    assert log_bytes(replica) == log_bytes(master)


def check(
    server: Server,
    levels: Ledger,
    timers: TimerLedger,
    *,
    may_repeat: Sequence[str] = (),
    few_of: Sequence[str] = (),
) -> None:
    """Check that each message was delivered, not early, and once.

    Args:
        may_repeat: Bodies that may be delivered twice.
        few_of: Bodies of which a few may be delivered twice.
    """
    wanted = levels.levels.keys() | timers.due_ms.keys()
    came = [record for record in pull_topic(server) if record.body.decode() in wanted]
    counts = Counter(record.body.decode() for record in came)
    assert counts.keys() == wanted
    repeated = {body for body, count in counts.items() if count > 1} - set(may_repeat)
    assert repeated <= set(few_of)
    assert len(repeated) <= PROGRESS_COPIES
    due_ms = timers.due_ms | due_times(server)
    for record in came:
        body = record.body.decode()
        assert record.store_ms >= due_ms[body], f"{body} was delivered early"


def wait_timer_progress(replica: Apache, count: int) -> None:
    """Wait until an Apache replica has the progress of `count` timers."""
    path = replica.store_dir / "config" / "timercheck"

    def progress() -> int:
        data = path.read_bytes() if path.exists() else b""
        return int(TIMER_CHECK.unpack_from(data)[3]) if len(data) >= TIMER_CHECK.size else 0

    until(
        lambda: progress() >= count,
        seconds=PROGRESS_S,
        what="progress of timers copied",
    )


@pytest.mark.extended
@pytest.mark.parametrize("version", [*VERSIONS, extended(NEWEST)])
def test_an_apache_replica_takes_over_from_ours_by_hand(version: str, tmp_path: Path) -> None:
    """Level messages after the last copied progress (60 s ago in 5.x) may be delivered twice.

    One timer per copy of the master's progress may also be delivered twice: a replica of 5.x puts
    the first timer after the progress into its wheel, and enqueues it again later.
    """
    levels, timers = Ledger(), TimerLedger()
    with DueMQ(tmp_path / "master", keys=KEYS | TIMERS) as master:
        master.create_topic(TOPIC)
        replica = ApacheReplica(version, master, tmp_path / "replica", keys=KEYS | TIMERS)
        with replica:
            levels.send(master, "soon", 30, level=1)
            levels.wait(master)
            if replica.has_timers:
                timers.send(master, "soon-timer", 30, delay_ms=1_000, kind="TIMER_DELIVER_MS")
                timers.wait(master)
                wait_timer_progress(replica, 30)
                timers.send(master, "timer", 30, delay_ms=15_000, kind="TIMER_DELIVER_MS")
            levels.send(master, "pending", 30, level=3)
            wait_copied(master, replica)
            master.kill()
            replica.stop_broker()
            replica.keys |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
            replica.start_own_namesrv()
            replica.start()
            replica.create_topic(TOPIC)
            levels.wait(replica)
            if replica.has_timers:
                timers.wait(replica)
                timers.wait_past()
            may_repeat, few_of = levels.of_level(1), timers.named("timer")
            check(replica, levels, timers, may_repeat=may_repeat, few_of=few_of)


@pytest.mark.extended
@pytest.mark.parametrize("version", [*VERSIONS, extended(NEWEST)])
def test_an_apache_replica_that_takes_over_knows_recalls_and_consumer_offsets(
    version: str, tmp_path: Path
) -> None:
    """Apache delivers a timer that is due when it is enqueued, without regard to a later recall.

    Recalls are therefore compared only if the replica takes over before the timers are due.
    """
    timers, offsets = TimerLedger(), {queue_id: 3 + queue_id for queue_id in range(QUEUE_COUNT)}
    with DueMQ(tmp_path / "master", keys=KEYS | TIMERS) as master:
        master.create_topic(TOPIC)
        create_group(master)
        Ledger().send(master, "consumed", 40)
        for queue_id, offset in offsets.items():
            fields = GROUP_FIELDS | {"queueId": str(queue_id), "commitOffset": str(offset)}
            assert call(master.broker_port, COMMIT_OFFSET, fields).code == SUCCESS
        replica = ApacheReplica(version, master, tmp_path / "replica", keys=KEYS | TIMERS)
        with replica:
            until(
                lambda: GROUP in str(json_of_running(replica.store_dir / OFFSETS_FILE)),
                seconds=PROGRESS_S,
                what="consumer offsets copied",
            )
            if replica.has_timers:
                timers.send(master, "timer", 30, delay_ms=45_000, kind="TIMER_DELIVER_MS")
                timers.recall(master, timers.named("timer")[::3])
                ids = [f"unique-{body}" for body in timers.named("timer")[1::3]]
                body = json.dumps({"topic": TOPIC, "ids": ids}).encode()
                assert (
                    call(master.broker_port, RequestCode.CANCEL_PENDING, {}, body).code == SUCCESS
                )
                timers.recalled |= set(timers.named("timer")[1::3])
            wait_copied(master, replica)
            master.kill()
            replica.stop_broker()
            replica.keys |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
            replica.start_own_namesrv()
            replica.start()
            replica.create_topic(TOPIC)
            for queue_id, offset in offsets.items():
                fields = GROUP_FIELDS | {"queueId": str(queue_id)}
                response = call(replica.broker_port, QUERY_OFFSET, fields)
                assert (response.code, response.fields.get("offset")) == (SUCCESS, str(offset))
            if replica.has_timers:
                is_in_time = now_ms() < min(timers.due_ms.values())
                timers.wait(replica)
                timers.wait_past()
                came = timers.delivered_counts(replica)
                assert not is_in_time or not timers.recalled & came.keys()


def create_group(server: Server) -> None:
    """Create the consumer group at the broker."""
    body = json.dumps({"groupName": GROUP, "retryQueueNums": 1, "retryMaxTimes": 16}).encode()
    assert call(server.broker_port, CREATE_GROUP, {}, body).code == SUCCESS


@pytest.mark.extended
def test_our_replica_takes_over_and_repeats_nothing(tmp_path: Path) -> None:
    """The master is killed while it delivers; consumed messages keep their queue offsets."""
    levels, timers = Ledger(), TimerLedger()
    keys = KEYS | TIMERS
    with DueMQ(tmp_path / "master", keys=keys | SYNC) as master:
        master.create_topic(TOPIC)
        replica = OurReplica(master, tmp_path / "replica", keys=keys)
        with replica:
            wait_code(master, SUCCESS)
            for second in range(2, 8):
                timers.send(
                    master, f"in-{second}", 40, delay_ms=1_000 * second, kind="TIMER_DELIVER_MS"
                )
                levels.send(master, f"level-{second}", 40, level=1 + second % 2)
            timers.wait(master, ["in-3-20"])
            master_had = [pull_queue(master, TOPIC, queue_id) for queue_id in range(QUEUE_COUNT)]
            master.kill()
            replica.stop_broker()
            replica.keys |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
            replica.keys["embeddedNamesrvEnable"] = "true"
            replica.start()
            levels.wait(replica)
            timers.wait(replica)
            timers.wait_past()
            check(replica, levels, timers)
            for queue_id, had in enumerate(master_had):
                now = pull_queue(replica, TOPIC, queue_id)
                assert [record.body for record in now[: len(had)]] == [r.body for r in had]
    verify(replica.store_dir)
