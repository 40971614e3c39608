"""Broker for the tests of applications: its clock, its fixtures, its cost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duemq.client import Closed, Message
from duemq.client.blocking import BlockingProducer, BlockingPullConsumer, LoopThread
from duemq.testing import LocalBroker
from tests.support.patient_clients import PREAMBLE

APPLICATION = """
from datetime import timedelta
from duemq import Message
from duemq.client.blocking import BlockingProducer

def test_a_reminder(duemq_broker):
    with BlockingProducer(duemq_broker.namesrv) as producer:
        producer.send(Message("reminders", b"tea", delay=timedelta(hours=2)))
    assert duemq_broker.messages("reminders") == []
    duemq_broker.advance(hours=2)
    assert [message.body for message in duemq_broker.messages("reminders")] == [b"tea"]

def test_it_is_empty(duemq_broker):
    assert duemq_broker.messages("reminders") == []

def test_one_test_of_the_session(duemq_session_broker):
    with BlockingProducer(duemq_session_broker.namesrv) as producer:
        producer.send(Message("reminders", b"tea"))

def test_the_next_one_has_the_same_broker(duemq_session_broker):
    assert [message.body for message in duemq_session_broker.messages("reminders")] == [b"tea"]
"""


@pytest.fixture(scope="module")
def duemq_session_broker() -> Iterator[LocalBroker]:
    """Broker that ends with this file; the application above uses that of its session."""
    with LocalBroker() as broker:
        yield broker


def bodies(broker: LocalBroker, topic: str) -> list[bytes]:
    return [message.body for message in broker.messages(topic)]


def test_time_delivers_what_is_due_in_order(duemq_session_broker: LocalBroker) -> None:
    broker = duemq_session_broker
    with BlockingProducer(broker.namesrv) as producer:
        producer.send(Message("Ordered", b"2 h", delay=timedelta(hours=2)))
        producer.send(Message("Ordered", b"1 h", deliver_at=broker.now + timedelta(hours=1)))
        producer.send(Message("Ordered", b"10 min", level=14))
        producer.send(Message("Ordered", b"3 d", delay=timedelta(days=2, hours=23)))
    broker.advance(minutes=8)  # the clock runs meanwhile
    assert bodies(broker, "Ordered") == []
    broker.advance(minutes=2)
    assert bodies(broker, "Ordered") == [b"10 min"]
    broker.advance(hours=2)
    assert bodies(broker, "Ordered") == [b"10 min", b"1 h", b"2 h"]
    broker.advance(timedelta(days=3))
    assert bodies(broker, "Ordered") == [b"10 min", b"1 h", b"2 h", b"3 d"]


def test_a_due_time_of_the_application_is_reached(duemq_session_broker: LocalBroker) -> None:
    broker = duemq_session_broker
    with LocalBroker() as fresh, BlockingProducer(fresh.namesrv) as producer:
        due = datetime.now(UTC) + timedelta(minutes=5)
        producer.send(Message("App", b"body", deliver_at=due))
        fresh.advance(minutes=5)
        [message] = fresh.messages("App")
        assert message.stored_at >= due - timedelta(milliseconds=1)
    assert broker.messages("App") == []


def test_delivery_never_precedes_the_due_time(duemq_session_broker: LocalBroker) -> None:
    broker = duemq_session_broker
    with BlockingProducer(broker.namesrv) as producer:
        for step_ms in range(1, 2_000, 37):
            due = broker.now + timedelta(milliseconds=step_ms * 1_000)
            producer.send(
                Message("Early", b"x", deliver_at=due, properties={"due": str(due.timestamp())})
            )
    broker.advance(minutes=40)
    messages = broker.messages("Early")
    assert len(messages) == len(range(1, 2_000, 37))
    for message in messages:
        assert message.stored_at.timestamp() >= float(message.properties["due"]) - 0.000_5


def test_the_clock_does_not_go_back(duemq_session_broker: LocalBroker) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        duemq_session_broker.advance(seconds=-1)


def test_the_blocking_consumer_reads_and_commits(duemq_session_broker: LocalBroker) -> None:
    namesrv = duemq_session_broker.namesrv
    with BlockingProducer(namesrv) as producer, BlockingPullConsumer(namesrv, group="g") as reader:
        producer.send_batch([Message("Read", b"1"), Message("Read", b"2")])
        [queue] = reader.queues("Read")
        pulled = reader.pull(queue, reader.min_offset(queue))
        assert [message.body for message in pulled.messages] == [b"1", b"2"]
        assert reader.committed(queue) == 0  # of a young queue, without a commit
        reader.commit(queue, pulled.next_offset)
        assert reader.committed(queue) == reader.max_offset(queue) == 2
        assert reader.offset_at(queue, datetime(2000, 1, 1, tzinfo=UTC)) == 0


def test_a_closed_loop_refuses_work() -> None:
    thread = LoopThread()
    thread.close()

    async def work() -> None:
        raise AssertionError("it ran")

    with pytest.raises(Closed, match="the client is closed"):
        thread.run(work())


def test_a_forked_process_is_told_to_create_its_own_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        raise AssertionError("it ran")

    with LoopThread() as thread, monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        with pytest.raises(Closed, match="create it in the child"):
            thread.run(work())
        patch.undo()


@pytest.mark.extended
def test_pytest_loads_the_fixtures_of_the_distribution(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PREAMBLE)
    (tmp_path / "test_application.py").write_text(APPLICATION)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_session_without_a_broker_does_not_load_it(tmp_path: Path) -> None:
    text = "import duemq.testing.plugin, sys; assert not {'numpy', 'numba'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
