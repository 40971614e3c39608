import random

import pytest

from duemq.transactions.half_messages import (
    CheckStep,
    HalfMessages,
    check_count,
    parse_op,
    plan_step,
    prepare_half,
    to_half_message,
)
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable
from tests.support.fakes import HOST


def half(born_ms: int = 0, store_ms: int = 0, **properties: str) -> Record:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    return Record(0, 0, 0, 0, 0, 0, 0, 0, born_ms, HOST, store_ms, HOST, 0, 0, b"", "half", text)


def test_a_half_message_stores_its_target_topic_and_queue() -> None:
    assert prepare_half({"UNIQ_KEY": "k", "REAL_TOPIC": "old"}, "T", 3) == {
        "UNIQ_KEY": "k",
        "__transactionId__": "k",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


def test_a_half_message_is_not_delayed_and_keeps_its_delay_property() -> None:
    topics, batch = TopicTable(), PutBatch(1)
    row = batch.add(
        topic_index=topics.add("T"),
        queue_id=2,
        body=b"x",
        properties=b"DELAY\x013\x02TIMER_DELAY_MS\x015\x02",
        born_ms=0,
        born_host=HOST,
        store_host=HOST,
        sys_flag=layout.SYS_PREPARED,
    )
    to_half_message(batch, row, topics)
    found = batch.rows[row]
    assert topics.name(int(found["topic_index"])) == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert (found["queue_id"], found["sys_flag"], found["delay_level"]) == (0, 0, 0)
    assert found["timer_kind"] == layout.TIMER_NONE
    assert batch.properties(row)["DELAY"] == "3"
    assert batch.properties(row)["REAL_QID"] == "2"


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"0", [0]),
        (b"0,1,", [0, 1]),
        (b"3,", [3]),
        (b"", []),
        (b"x,-1, 5 ,1e3,7", [5, 7]),
        (b"9" * 30, []),
    ],
)
def test_op_bodies_of_both_versions(body: bytes, offsets: list[int]) -> None:
    assert parse_op(body) == offsets


@pytest.mark.parametrize(("text", "times"), [("", 0), ("0", 0), ("14", 14), ("x", 0), ("-1", 0)])
def test_check_count(text: str, times: int) -> None:
    assert check_count(half(TRANSACTION_CHECK_TIMES=text)) == times


IMMUNE = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}


@pytest.mark.parametrize(
    ("age_ms", "properties", "step"),
    [
        (0, {}, CheckStep.WAIT),
        (5_999, {}, CheckStep.WAIT),
        (6_000, {}, CheckStep.CHECK_BACK),
        (0, {"TRANSACTION_CHECK_TIMES": "1"}, CheckStep.CHECK_BACK),
        (0, {"TRANSACTION_CHECK_TIMES": "15"}, CheckStep.GIVE_UP),
        (6_000, IMMUNE, CheckStep.SKIP),
        (59_999, IMMUNE, CheckStep.SKIP),
        (60_000, IMMUNE, CheckStep.CHECK_BACK),
        (5_999, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, CheckStep.SKIP),
        (6_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, CheckStep.CHECK_BACK),
    ],
)
def test_step_of_an_unfinished_half_message(
    age_ms: int, properties: dict[str, str], step: CheckStep
) -> None:
    record = half(1_000, 1_000, **properties)
    planned = plan_step(record, now_ms=1_000 + age_ms, timeout_ms=6_000, checks_max=15)
    assert planned is step


def test_cursors_advance_past_finished_half_messages() -> None:
    halves = HalfMessages()
    halves.apply_op(0, [1])
    halves.apply_op(1, [2])
    halves.advance(3)
    assert (halves.half_next, halves.op_next) == (0, 0)
    halves.apply_op(2, [0])
    halves.advance(3)
    assert (halves.half_next, halves.op_next, halves.finished) == (3, 3, set())


def test_the_op_cursor_stays_at_the_first_required_op_record() -> None:
    halves = HalfMessages()
    for op, half_offset in enumerate([0, 5, 1]):
        halves.apply_op(op, [half_offset])
    halves.advance(9)
    assert (halves.half_next, halves.op_next) == (2, 1)
    assert halves.is_finished(5)


def test_the_newest_copy_replaces_older_copies() -> None:
    halves, same = HalfMessages(), ("T", "P", "u", 5, (b"\x7f\0\0\1", 1))
    halves.replace(0, 3, same)
    halves.replace(3, 7, same)
    assert halves.copies == {same: 7}
    assert (halves.is_finished(0), halves.is_finished(3), halves.is_finished(7)) == (
        True,
        True,
        False,
    )
    halves.finish(3, same)
    assert halves.copies == {same: 7}
    halves.finish(7, same)
    assert halves.copies == {}


def test_half_messages_removed_by_retention_are_skipped() -> None:
    halves = HalfMessages()
    halves.apply_op(0, [2, 6])
    halves.skip_to(5)
    assert (halves.half_next, halves.finished) == (5, {6})


@pytest.mark.parametrize("seed", range(20))
def test_replaying_from_the_cursors_restores_the_state(seed: int) -> None:
    chance, halves, ops, high = random.Random(seed), HalfMessages(), [], 0
    finished = set()
    for _ in range(200):
        high += chance.randrange(3)
        left = [offset for offset in range(high) if offset not in finished]
        if left and chance.random() < 0.6:
            named = chance.sample(left, min(len(left), chance.randrange(1, 3)))
            finished.update(named)
            ops.append(named)
            halves.apply_op(len(ops) - 1, named)
        halves.advance(high)
    again = HalfMessages(halves.half_next, halves.op_next, halves.op_next)
    for op in range(halves.op_next, len(ops)):
        again.apply_op(op, ops[op])
    for offset in range(high):
        assert again.is_finished(offset) == halves.is_finished(offset) == (offset in finished)
