"""Commits whose op record a crash or a full disk lost are found and not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from duemq_common.request import Request
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC
from message_store.layout import SYS_COMMIT
from message_store.log.batch import PutBatch
from tests.duemq.transactions.conftest import Rig
from tests.support.killed_copy import copy_as_killed
from tests.support.running_broker import running, small
from tests.support.stores import put_one

END = {"producerGroup": "p", "commitOrRollback": 8, "msgId": "TX1", "transactionId": "TX1"}


def cut(log: Path, start: int) -> None:
    with log.open("r+b") as file:
        file.seek(start)
        file.write(bytes(4_096))


@pytest.mark.finding("A11")
def test_a_torn_commit_is_finished_before_a_plugin_delivers(tmp_path: Path) -> None:
    """An overdue level message, delivered at the start, must not hide the torn commit."""
    clock = FakeClock()
    properties = small(tmp_path, messageDelayLevel="1s 5s")

    async def commit() -> tuple[dict[str, str | int], int]:
        async with running(properties, clock=clock) as (broker, remote):
            assert (await remote.send("T", b"overdue", DELAY="1")).code == 0
            half = await remote.send("T", b"tx", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="TX1")
            end = END | {
                "commitLogOffset": int(half.fields["msgId"][-16:], 16),
                "tranStateTableOffset": half.fields["queueOffset"],
            }
            commit_at = broker.store.max_offset
            assert (await remote.call(37, end | {"fromTransactionCheck": "false"})).code == 0
            op_at = commit_at + broker.store.read_record(commit_at).total_size
            copy_as_killed(tmp_path / "store", tmp_path / "killed")
            return end, op_at

    async def again(end: dict[str, str | int]) -> None:
        store = {"storePathRootDir": str(tmp_path / "killed")}
        async with running(properties | store, clock=clock) as (broker, remote):
            assert (await remote.pull("T", 1)).code == 0  # the overdue message is delivered
            response = await remote.call(37, end | {"fromTransactionCheck": "true"})
            assert "finished already" in response.remark
            assert broker.store.queue_bounds("T", 0)[1] == 2
            assert broker.store.queue_bounds(OP_HALF_TOPIC, 0)[1] == 1

    end, op_at = asyncio.run(commit())
    cut(tmp_path / "killed/commitlog/00000000000000000000", op_at)
    clock.advance(10_000)
    asyncio.run(again(end))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.__exit__(None, None, None)


def refuse_op(batch: PutBatch, now_ms: int) -> None:
    if batch.count > 1:
        batch.refuse(batch.count - 1, 14, "the disk is full")


@pytest.mark.finding("A11")
def test_an_op_record_that_a_full_disk_refuses_is_written_later(
    run: Callable[..., Any], rig: Rig
) -> None:
    rig.service.queue.recover()
    row = rig.send()
    rig.append_hooks.append(refuse_op)
    run(rig.end(row))
    assert (len(rig.records("T", 1)), rig.records(OP_HALF_TOPIC)) == (1, [])
    rig.append_hooks.clear()
    run(rig.service.check())
    assert [op.body for op in rig.records(OP_HALF_TOPIC)] == [b"0"]
    run(rig.end(row))
    assert len(rig.records("T", 1)) == 1


@pytest.mark.finding("A11")
def test_a_commit_without_op_record_is_found_at_any_offset(
    run: Callable[..., Any], rig: Rig
) -> None:
    """The commit is also found after a regular stop and with later records in the log."""
    rig.service.queue.recover()
    rows = [rig.send(key=f"u{n}") for n in range(3)]
    rig.append_hooks.append(refuse_op)
    run(rig.end(rows[1]))
    rig.append_hooks.clear()
    run(rig.end(rows[2], 12))
    rig.reopen()
    assert sorted(op.body for op in rig.records(OP_HALF_TOPIC)) == [b"1", b"2"]
    run(rig.end(rows[1]))
    assert len(rig.records("T", 1)) == 1
    run(rig.end(rows[0]))
    assert len(rig.records("T", 1)) == 2


@pytest.mark.finding("A11")
def test_a_clients_message_is_not_a_commit(run: Callable[..., Any], rig: Rig) -> None:
    """A commit has the key, group and born time of its half message."""
    row = rig.send()
    assert row["phys_offset"] == 0  # what a client's message names as its half message
    put_one(rig.store, "T", 1, sys_flag=SYS_COMMIT, properties={"UNIQ_KEY": "u", "PGROUP": "Q"})
    rig.reopen()
    assert rig.records(OP_HALF_TOPIC) == []
    run(rig.end(row))
    assert len(rig.records("T", 1)) == 2


@pytest.mark.finding("A3")
@pytest.mark.parametrize(
    "target",
    [
        {"REAL_TOPIC": "../../evil"},
        {"REAL_TOPIC": ""},
        {"REAL_TOPIC": "x" * 256},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX"},
        {"REAL_TOPIC": OP_HALF_TOPIC},
        {"REAL_TOPIC": "DUEMQ_MIGRATION"},
        {"REAL_QID": "-1"},
        {"REAL_QID": "99999999"},
        {"REAL_QID": "²"},
    ],
    ids=str,
)
def test_a_half_message_without_a_valid_target_is_not_committed(
    run: Callable[..., Any], rig: Rig, target: dict[str, str]
) -> None:
    properties = {"PGROUP": "P", "UNIQ_KEY": "u", "REAL_TOPIC": "T", "REAL_QID": "1"} | target
    row = put_one(rig.store, HALF_TOPIC, properties=properties)
    end, topics = rig.store.max_offset, len(rig.store.topics)
    with pytest.raises(Exception, match="no valid target topic and queue"):
        run(rig.end(row))
    assert (rig.store.max_offset, len(rig.store.topics)) == (end, topics)


def test_only_given_up_messages_are_resumed(run: Callable[..., Any], rig: Rig) -> None:
    """Resuming a finished half message would commit it a second time."""
    row = rig.send()
    run(rig.end(row))
    offset_id = f"7F00000100002A9F{int(row['phys_offset']):016X}"
    with pytest.raises(Exception, match="can be resumed"):
        run(rig.service.handlers()[323](Request(323, {"msgId": offset_id})))
