"""`duemq timers export` of a replica whose master is Apache's broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.cli.message_file import FileMessage, read_file
from tests.interop import timer_work
from tests.interop.apache import Apache
from tests.interop.replicas import OurReplica, wait_copied
from tests.interop.store_work import TOPIC, send
from tests.interop.timer_work import TimerLedger
from tests.support.commands import duemq

HOUR_MS = 3_600_000
KEYS = timer_work.KEYS | {"messageDelayLevel": "1s 1h", "timerRollWindowSlot": "600"}


@pytest.mark.extended
def test_a_stopped_replica_exports_what_is_pending_at_its_apache_master(tmp_path: Path) -> None:
    timers, levels = TimerLedger(), [f"level-{number}" for number in range(6)]
    with Apache("5.3.3", tmp_path / "apache", keys=KEYS) as apache:
        apache.create_topic(TOPIC)
        for number, body in enumerate(levels):
            send(apache, body, number % 4, {"DELAY": "2"})
        timers.send(apache, "soon", 3, delay_ms=1_500, kind="TIMER_DELIVER_MS")
        timers.send(apache, "hour", 6, delay_ms=HOUR_MS, kind="TIMER_DELIVER_MS")
        timers.recall(apache, ["hour-0"])
        timers.wait(apache, timers.named("soon"))
        send(apache, "last", 0, {})
        with OurReplica(apache, tmp_path / "replica", keys=KEYS) as replica:
            wait_copied(apache, replica)
    messages = exported(replica, tmp_path / "pending.jsonl")
    by_body = {message.body.decode(): message for message in messages}
    assert len(by_body) == len(messages)
    hours = [body for body in timers.named("hour") if body != "hour-0"]
    assert by_body.keys() == {*levels, *hours}
    for body in hours:
        assert by_body[body].due_ms == timers.due_ms[body]
    for body, message in by_body.items():
        assert (message.topic, message.unique_id) == (TOPIC, f"unique-{body}")


def exported(replica: OurReplica, file: Path) -> list[FileMessage]:
    """Export the store of a stopped replica; return the messages of the file."""
    conf = replica.home / "broker.conf"
    words = ("timers", "export", str(file), "--store", str(replica.store_dir), "-c", str(conf))
    done = duemq(*words)
    assert done.returncode == 0, done.stderr
    return list(read_file(file))
