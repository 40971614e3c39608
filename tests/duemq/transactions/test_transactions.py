from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq.auth.model import Action
from duemq.auth.record_access import UnrestrictedAccess
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from duemq_common.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import decode_record
from message_store.replication.acknowledgement import Missing
from tests.duemq.transactions.conftest import COMMIT, ROLLBACK, UNKNOWN, Rig
from tests.support.extended import one_in
from tests.support.fakes import settle
from tests.support.stores import add_message


def test_commit_makes_the_message_visible_as_apache_writes_it(
    run: Callable[..., Any], rig: Rig
) -> None:
    row = rig.send(b"hello", TAGS="a", DELAY="3")
    response = run(rig.end(row))
    assert (response.code, response.fields) == (0, {})
    (record,) = rig.records("T", 1)
    assert (record.body, record.sys_flag, record.prepared_offset) == (b"hello", 8, 0)
    assert record.properties["REAL_TOPIC"] == "T"
    assert record.properties["TRAN_MSG"] == "true"
    (op,) = rig.records(OP_HALF_TOPIC)
    assert (op.body, op.property_text) == (b"0", b"WAIT\x01true\x02TAGS\x01d\x02")


def test_the_delay_applies_at_commit_through_the_hooks(run: Callable[..., Any], rig: Rig) -> None:
    seen = []
    rig.hooks.append(lambda batch, now: seen.extend(batch.filled["delay_level"].tolist()))
    run(rig.end(rig.send(DELAY="3")))
    assert seen == [3, 0]


def test_rollback_only_appends_records(run: Callable[..., Any], rig: Rig) -> None:
    run(rig.end(rig.send(), ROLLBACK))
    assert rig.records("T", 1) == []
    assert [op.body for op in rig.records(OP_HALF_TOPIC)] == [b"0"]


def test_an_unknown_state_gets_no_response(run: Callable[..., Any], rig: Rig) -> None:
    assert run(rig.end(rig.send(), UNKNOWN)) is None
    assert rig.records(OP_HALF_TOPIC) == []


@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
def test_a_second_end_changes_nothing(run: Callable[..., Any], rig: Rig, verdict: int) -> None:
    row = rig.send()
    run(rig.end(row, COMMIT))
    run(rig.end(row, verdict))
    rig.reopen()
    run(rig.end(row, verdict))
    assert len(rig.records("T", 1)) == 1


def test_two_concurrent_ends_are_applied_once(run: Callable[..., Any], rig: Rig) -> None:
    async def scene() -> None:
        row = rig.send()
        await asyncio.gather(rig.end(row), rig.end(row))

    run(scene())
    assert len(rig.records("T", 1)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"producerGroup": "Q"},
        {"tranStateTableOffset": 7},
        {"commitLogOffset": 3},
        {"commitLogOffset": 99_999},
        {"commitLogOffset": "x"},
    ],
)
def test_an_end_without_a_matching_half_message_is_refused(
    run: Callable[..., Any], rig: Rig, changes: dict[str, str | int]
) -> None:
    row = rig.send()
    with pytest.raises(RequestError) as refusal:
        run(rig.end(row, **changes))
    assert refusal.value.code == 1
    assert rig.records(OP_HALF_TOPIC) == []


def test_an_ordinary_message_cannot_be_committed(run: Callable[..., Any], rig: Rig) -> None:
    batch = PutBatch(1)
    add_message(rig.store, batch, "T", properties={"PGROUP": "P"})
    rig.store.put(batch)
    with pytest.raises(RequestError):
        run(rig.end(batch.rows[0]))


@pytest.mark.parametrize(
    ("age_ms", "checked", "code"), [(1_000, False, 0), (1_001, False, 604), (1_001, True, 0)]
)
def test_an_end_after_the_immunity_time_must_follow_a_check_back(
    run: Callable[..., Any], rig: Rig, age_ms: int, checked: bool, code: int
) -> None:
    row = rig.send(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    rig.clock.advance(age_ms)
    try:
        found = run(rig.end(row, fromTransactionCheck=str(checked).lower())).code
    except RequestError as refusal:
        found = refusal.code
    assert found == code


def test_a_half_message_whose_commit_a_hook_refuses_is_unfinished(
    run: Callable[..., Any], rig: Rig
) -> None:
    def refuse_targets(batch: PutBatch, now_ms: int) -> None:
        for at in range(batch.count):
            if rig.store.topics.name(int(batch.rows[at]["topic_index"])) == "T":
                batch.refuse(at, 13, "not this one")

    row = rig.send()
    rig.hooks.append(refuse_targets)
    with pytest.raises(RequestError, match="not this one"):
        run(rig.end(row))
    assert rig.records(OP_HALF_TOPIC) == []
    rig.hooks.clear()
    assert run(rig.end(row)).code == 0
    assert len(rig.records("T", 1)) == 1


def test_a_check_back_names_the_newest_copy(run: Callable[..., Any], rig: Rig) -> None:
    async def scene() -> np.void:
        first = rig.send(b"hello", key="K", TAGS="a")
        rig.clock.advance(5_999)
        await rig.service.check()
        assert rig.requested() == []
        rig.clock.advance(1)
        await rig.service.check()
        return first

    first = run(scene())
    (request,) = rig.peer.sent
    copy = rig.records(HALF_TOPIC)[1]
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert request.oneway
    assert request.fields == {
        "tranStateTableOffset": "1",
        "commitLogOffset": str(copy.phys_offset),
        "msgId": "K",
        "transactionId": "K",
        "offsetMsgId": f"7F00000100002A9F{copy.phys_offset:016X}",
        "topic": HALF_TOPIC,
        "bname": "broker-a",
    }
    reported = decode_record(memoryview(request.body), 0)
    assert (reported.topic, reported.queue_id, reported.body) == ("T", 1, b"hello")
    assert (reported.queue_offset, reported.phys_offset) == (1, copy.phys_offset)
    assert reported.store_ms == first["store_ms"]
    assert reported.properties["WAIT"] == "false"
    run(rig.end({"queue_offset": 1, "phys_offset": copy.phys_offset}))
    assert len(rig.records("T", 1)) == 1


def test_a_late_end_of_the_first_copy_ends_the_newest(run: Callable[..., Any], rig: Rig) -> None:
    row = rig.send()
    for _ in range(3):
        rig.clock.advance(30_000)
        run(rig.service.check())
    run(rig.end(row))
    (record,) = rig.records("T", 1)
    assert record.prepared_offset == rig.records(HALF_TOPIC)[3].phys_offset
    before = len(rig.requested())
    rig.clock.advance(30_000)
    run(rig.service.check())
    assert len(rig.requested()) == before == 3
    assert rig.service.queue.halves.half_next == 4
    assert rig.service.queue.halves.copies == {}


def test_a_replica_ends_no_transaction(run: Callable[..., Any], rig: Rig) -> None:
    """It refuses even a finished half message, which may have a newer copy on the master."""
    row = rig.send()
    run(rig.end(row))
    rig.store.read_only = "this broker is a replica"
    with pytest.raises(RequestError, match="replica") as refused:
        run(rig.end(row))
    assert refused.value.code == 11


def test_an_end_during_a_check_back_ends_the_copy(run: Callable[..., Any], rig: Rig) -> None:
    """While the copy is not confirmed, the end waits; it then applies to the copy."""

    async def scene() -> Response | None:
        row, confirmed = rig.send(), asyncio.Event()
        rig.confirm = confirmed.wait  # type: ignore[assignment]
        rig.clock.advance(30_000)
        checking = asyncio.create_task(rig.service.check())
        await settle()
        ending = asyncio.create_task(rig.end(row))
        await settle()
        confirmed.set()
        await checking
        return await ending

    response = run(scene())
    assert (response.code, response.remark) == (0, None)
    (record,) = rig.records("T", 1)
    assert record.prepared_offset == rig.records(HALF_TOPIC)[1].phys_offset


def test_a_half_message_is_given_up_after_the_last_check(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    rig = Rig(tmp_path, transaction_checks_max=2)
    rig.send(b"lost", DELAY="3")
    for _ in range(5):
        rig.clock.advance(30_000)
        run(rig.service.check())
    assert len(rig.requested()) == 2
    (record,) = rig.records(CHECK_MAX_TIME_TOPIC)
    assert record.body == b"lost"
    assert CHECK_MAX_TIME_TOPIC in rig.topics.table
    assert rig.service.queue.halves.half_next == rig.store.queue_bounds(HALF_TOPIC, 0)[1]
    rig.store.__exit__(None, None, None)


@pytest.mark.finding("E6")
def test_a_round_over_many_half_messages_yields_to_other_tasks(
    run: Callable[..., Any], rig: Rig
) -> None:
    async def scene() -> None:
        for number in range(50):
            rig.send(key=str(number))
        rig.clock.advance(30_000)
        turns, round_ = 0, asyncio.create_task(rig.service.check())
        while not round_.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= len(rig.requested()) == 50

    run(scene())


def test_an_immune_message_does_not_delay_other_check_backs(
    run: Callable[..., Any], rig: Rig
) -> None:
    rig.send(key="a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    rig.send(key="b")
    rig.clock.advance(6_000)
    run(rig.service.check())
    assert [request.fields["msgId"] for request in rig.peer.sent] == ["b"]


def test_finished_messages_advance_the_stored_cursors(run: Callable[..., Any], rig: Rig) -> None:
    rows = [rig.send(key=str(n)) for n in range(4)]
    for row in (rows[0], rows[1], rows[3]):
        run(rig.end(row))
    run(rig.service.check())
    assert rig.offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 2
    assert rig.offsets.query("CID_RMQ_SYS_TRANS", OP_HALF_TOPIC, 0) == 2


def test_the_task_checks_back_every_interval(run: Callable[..., Any], rig: Rig) -> None:
    async def scene() -> Any:
        rig.send()
        async with rig.service.running():
            for _ in range(3):
                await settle()
                rig.clock.advance(30_000)
                await settle(200)
        return len(rig.requested())

    assert run(scene()) == 3


def test_a_check_back_without_a_connected_producer_is_no_error(
    run: Callable[..., Any], rig: Rig
) -> None:
    rig.peer.close()
    rig.send()
    rig.clock.advance(6_000)
    run(rig.service.check())
    assert len(rig.records(HALF_TOPIC)) == 2


def test_a_given_up_message_can_be_resumed(run: Callable[..., Any], tmp_path: Path) -> None:
    rig = Rig(tmp_path, transaction_checks_max=1)
    rig.send(b"again")
    for _ in range(2):
        rig.clock.advance(30_000)
        run(rig.service.check())
    (lost,) = rig.records(CHECK_MAX_TIME_TOPIC)
    offset_id = f"7F00000100002A9F{lost.phys_offset:016X}"
    resume = rig.service.handlers()[323]
    assert run(resume(Request(323, {"msgId": offset_id}))).code == 0
    before = len(rig.requested())
    rig.clock.advance(30_000)
    run(rig.service.check())
    assert len(rig.requested()) == before + 1
    with pytest.raises(RequestError):
        run(resume(Request(323, {"msgId": "no id"})))
    rig.store.__exit__(None, None, None)


def test_a_message_of_a_forbidden_topic_is_not_resumed(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(access: UnrestrictedAccess, request: Request, topic: str, *actions: Action) -> None:
        assert (topic, actions) == ("T", (Action.UPDATE,))
        raise RequestError(ResponseCode.NO_PERMISSION, "refused")

    rig = Rig(tmp_path, transaction_checks_max=1)
    rig.send()
    for _ in range(2):
        rig.clock.advance(30_000)
        run(rig.service.check())
    (lost,) = rig.records(CHECK_MAX_TIME_TOPIC)
    halves = len(rig.records(HALF_TOPIC))
    monkeypatch.setattr(UnrestrictedAccess, "check_record", refuse)
    with pytest.raises(RequestError, match="refused"):
        run(rig.service.resume(Request(323, {"msgId": f"7F00000100002A9F{lost.phys_offset:016X}"})))
    assert len(rig.records(HALF_TOPIC)) == halves
    rig.store.__exit__(None, None, None)


def test_a_second_end_reports_what_the_first_one_lacks(
    run: Callable[..., Any], rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(end: int) -> Missing:
        return Missing.REPLICAS

    row = rig.send()
    run(rig.end(row))
    monkeypatch.setattr(rig.store, "wait_confirmed", missing)
    with pytest.raises(RequestError) as refusal:
        run(rig.end(row))
    assert refusal.value.code == Missing.REPLICAS.code


@pytest.mark.parametrize("seed", one_in(4, range(12)))
def test_every_transaction_ends_once_after_random_steps(tmp_path: Path, seed: int) -> None:
    """Run random sends, ends (also repeated and late), checks, restarts with old cursors."""

    async def scene() -> None:
        chance, rig = random.Random(seed), Rig(tmp_path, transaction_checks_max=100)
        rows, verdicts, stale = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
        for step in range(120):
            match chance.randrange(8):
                case 0 | 1 | 2:
                    rows[f"k{step}"] = rig.send(f"k{step}".encode(), key=f"k{step}")
                case 3 | 4 if rows:
                    key = chance.choice(list(rows))
                    verdict = verdicts.setdefault(key, chance.choice([COMMIT, ROLLBACK]))
                    await rig.end(rows[key], verdict)
                case 5 if rig.peer.sent:
                    requested = chance.choice(rig.peer.sent).fields
                    key = requested["msgId"]
                    verdict = verdicts.setdefault(key, chance.choice([COMMIT, ROLLBACK]))
                    copy = {
                        "queue_offset": int(requested["tranStateTableOffset"]),
                        "phys_offset": int(requested["commitLogOffset"]),
                    }
                    await rig.end(copy, verdict, fromTransactionCheck="true")
                case 6:
                    rig.clock.advance(chance.choice([1_000, 30_000]))
                    await rig.service.check()
                case 7:
                    rig.offsets.table = dict(chance.choice([stale, rig.offsets.table]))
                    rig.reopen()
                    stale = dict(rig.offsets.table)
        delivered = sorted(record.body.decode() for record in rig.records("T", 1))
        assert delivered == sorted(key for key, verdict in verdicts.items() if verdict == COMMIT)
        rig.peer.sent.clear()
        rig.clock.advance(60_000)
        await rig.service.check()
        requested = sorted(request.fields["msgId"] for request in rig.peer.sent)  # type: ignore[assignment]
        assert requested == sorted(rows.keys() - verdicts.keys())  # type: ignore[comparison-overlap]
        rig.store.__exit__(None, None, None)

    asyncio.run(scene())


@pytest.mark.finding("3S1")
def test_a_half_message_of_another_topic_is_no_copy(run: Callable[..., Any], rig: Rig) -> None:
    """A client chooses group, key, born time and check count, but not the topic."""
    row = rig.send(b"kept")
    rig.send(b"forged", topic="U", TRANSACTION_CHECK_TIMES="1")
    rig.reopen()
    run(rig.end(row))
    assert [record.body for record in rig.records("T", 1)] == [b"kept"]


def test_a_commit_waits_until_a_deleted_topic_is_created_again(
    run: Callable[..., Any], rig: Rig
) -> None:
    """Its message would be in a queue that no consumer reads, and not in quarantine."""

    def route(name: str, queues: int) -> None:
        rig.store.topics.set_routing(name, write_queues=queues, read_queues=queues, perm=6)

    committed, rolled_back = rig.send(key="a"), rig.send(key="b")
    route("U", 1)
    route("T", 0)
    with pytest.raises(RequestError, match="not exist") as refused:
        run(rig.end(committed))
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST
    run(rig.end(rolled_back, ROLLBACK))
    assert rig.records("T", 1) == []
    route("T", 2)
    for row in (committed, rolled_back):
        run(rig.end(row))
    assert len(rig.records("T", 1)) == 1


@pytest.mark.parametrize("ending", ["end", "check-back", "given up and resumed"])
def test_a_lower_maximum_size_does_not_apply_to_stored_half_messages(
    run: Callable[..., Any], rig: Rig, ending: str
) -> None:
    row: Any = rig.send(bytes(10_000))
    rig.store_changes = {"message_bytes_max": 5_000}
    rig.reopen()

    async def scene() -> None:
        end: Any = row
        for _ in range({"end": 0, "check-back": 2, "given up and resumed": 16}[ending]):
            rig.clock.advance(60_000)
            await rig.service.check()
        if ending == "given up and resumed":
            [record] = rig.records(CHECK_MAX_TIME_TOPIC)
            message_id = encode_offset_id(*record.store_host, record.phys_offset)
            response = await rig.service.resume(Request(323, {"msgId": message_id}))
            assert response.code == 0
            [*_, half] = rig.records(HALF_TOPIC)
            end = {"queue_offset": half.queue_offset, "phys_offset": half.phys_offset}
        await rig.end(end)

    run(scene())
    [record] = rig.records("T", 1)
    assert len(record.body) == 10_000
    assert rig.service.queue.open_count == 0
