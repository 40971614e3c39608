"""Apache's 5.5.1 broker takes over with nothing but the log of our master."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.apache import NEWEST
from tests.interop.replicas import ApacheReplica
from tests.interop.store_work import TOPIC, bounds
from tests.interop.test_replica_of_ours import TIMERS
from tests.interop.timer_work import KEYS, PRECISION_MS, TimerLedger
from tests.support.duemq_server import DueMQ
from tests.support.wait_until import now_ms, until

DUE_MS = 120_000  # longer than Apache's stop and start on a busy machine
DELIVERED_S = 400.0
TIMERS_QUEUE = ("rmq_sys_wheel_timer", 0)


@pytest.mark.extended
@pytest.mark.finding("3C1")
@pytest.mark.parametrize("timeline", ["false", "true"])
def test_a_promoted_apache_replica_delivers_no_cancelled_timer(
    timeline: str, tmp_path: Path
) -> None:
    """With the wheel, 5.5.1 compares the key alone; with RocksDB's timeline, also topic+key."""
    timers = TimerLedger()
    keys = KEYS | TIMERS | {"timerRollWindowSlot": "3600"}
    with DueMQ(tmp_path / "master", keys=keys) as master:
        master.create_topic(TOPIC)
        apaches = keys | {"timerRocksDBEnable": timeline}
        with ApacheReplica(NEWEST, master, tmp_path / "replica", keys=apaches) as replica:
            timers.send(master, "timer", 12, delay_ms=DUE_MS, kind="TIMER_DELIVER_MS")
            timers.recall(master, timers.named("timer")[::3])
            until(
                lambda: bounds(replica, [TIMERS_QUEUE]) == bounds(master, [TIMERS_QUEUE]),
                seconds=DELIVERED_S,
                what="timers and markers copied",
                poll_s=0.2,
            )
            master.kill()
            replica.stop_broker()
            replica.keys |= {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
            replica.start_own_namesrv()
            replica.start()
            assert now_ms() < min(timers.due_ms.values()), "Apache delivers overdue timers at once"
            replica.create_topic(TOPIC)
            end_ms = max(timers.due_ms.values()) + 3 * PRECISION_MS
            until(lambda: now_ms() > end_ms, seconds=DELIVERED_S, what="all due", poll_s=0.5)
            timers.wait(replica)
            counts = timers.delivered_counts(replica)
    assert counts.keys() == timers.expected
    assert set(counts.values()) == {1}
