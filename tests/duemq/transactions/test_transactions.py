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
from duemq.net.codes import ResponseCode
from duemq.transactions.half_messages import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch
from message_store.log.record import decode_record
from message_store.replication.acknowledgement import Missing
from tests.duemq.transactions.conftest import COMMIT, ROLLBACK, UNKNOWN, World
from tests.support.extended import one_in
from tests.support.fakes import settle
from tests.support.stores import add_message


def test_commit_makes_the_message_visible_as_apache_writes_it(
    run: Callable[..., Any], world: World
) -> None:
    row = world.send(b"hello", TAGS="a", DELAY="3")
    response = run(world.end(row))
    assert (response.code, response.fields) == (0, {})
    (record,) = world.records("T", 1)
    assert (record.body, record.sys_flag, record.prepared_offset) == (b"hello", 8, 0)
    assert record.properties["REAL_TOPIC"] == "T"
    assert record.properties["TRAN_MSG"] == "true"
    (op,) = world.records(OP_TOPIC)
    assert (op.body, op.property_text) == (b"0", b"WAIT\x01true\x02TAGS\x01d\x02")


def test_the_delay_applies_at_commit_through_the_hooks(
    run: Callable[..., Any], world: World
) -> None:
    seen = []
    world.hooks.append(lambda batch, now: seen.extend(batch.filled["delay_level"].tolist()))
    run(world.end(world.send(DELAY="3")))
    assert seen == [3, 0]


def test_rollback_only_appends_records(run: Callable[..., Any], world: World) -> None:
    run(world.end(world.send(), ROLLBACK))
    assert world.records("T", 1) == []
    assert [op.body for op in world.records(OP_TOPIC)] == [b"0"]


def test_an_unknown_state_gets_no_response(run: Callable[..., Any], world: World) -> None:
    assert run(world.end(world.send(), UNKNOWN)) is None
    assert world.records(OP_TOPIC) == []


@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
def test_a_second_end_changes_nothing(run: Callable[..., Any], world: World, verdict: int) -> None:
    row = world.send()
    run(world.end(row, COMMIT))
    run(world.end(row, verdict))
    world.reopen()
    run(world.end(row, verdict))
    assert len(world.records("T", 1)) == 1


def test_two_concurrent_ends_are_applied_once(run: Callable[..., Any], world: World) -> None:
    async def scene() -> None:
        row = world.send()
        await asyncio.gather(world.end(row), world.end(row))

    run(scene())
    assert len(world.records("T", 1)) == 1


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
    run: Callable[..., Any], world: World, changes: dict[str, str | int]
) -> None:
    row = world.send()
    with pytest.raises(RequestError) as refusal:
        run(world.end(row, **changes))
    assert refusal.value.code == 1
    assert world.records(OP_TOPIC) == []


def test_an_ordinary_message_cannot_be_committed(run: Callable[..., Any], world: World) -> None:
    batch = PutBatch(1)
    add_message(world.store, batch, "T", properties={"PGROUP": "P"})
    world.store.put(batch)
    with pytest.raises(RequestError):
        run(world.end(batch.rows[0]))


@pytest.mark.parametrize(
    ("age_ms", "checked", "code"), [(1_000, False, 0), (1_001, False, 604), (1_001, True, 0)]
)
def test_an_end_after_the_immunity_time_must_follow_a_check_back(
    run: Callable[..., Any], world: World, age_ms: int, checked: bool, code: int
) -> None:
    row = world.send(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    world.clock.advance(age_ms)
    try:
        found = run(world.end(row, fromTransactionCheck=str(checked).lower())).code
    except RequestError as refusal:
        found = refusal.code
    assert found == code


def test_a_half_message_whose_commit_a_hook_refuses_is_unfinished(
    run: Callable[..., Any], world: World
) -> None:
    def refuse_targets(batch: PutBatch, now_ms: int) -> None:
        for at in range(batch.count):
            if world.store.topics.name(int(batch.rows[at]["topic_index"])) == "T":
                batch.refuse(at, 13, "not this one")

    row = world.send()
    world.hooks.append(refuse_targets)
    with pytest.raises(RequestError, match="not this one"):
        run(world.end(row))
    assert world.records(OP_TOPIC) == []
    world.hooks.clear()
    assert run(world.end(row)).code == 0
    assert len(world.records("T", 1)) == 1


def test_a_check_back_names_the_newest_copy(run: Callable[..., Any], world: World) -> None:
    async def scene() -> np.void:
        first = world.send(b"hello", key="K", TAGS="a")
        world.clock.advance(5_999)
        await world.service.check()
        assert world.asked() == []
        world.clock.advance(1)
        await world.service.check()
        return first

    first = run(scene())
    (request,) = world.peer.sent
    copy = world.records(HALF_TOPIC)[1]
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
    told = decode_record(memoryview(request.body), 0)
    assert (told.topic, told.queue_id, told.body) == ("T", 1, b"hello")
    assert (told.queue_offset, told.phys_offset) == (1, copy.phys_offset)
    assert told.store_ms == first["store_ms"]
    assert told.properties["WAIT"] == "false"
    run(world.end({"queue_offset": 1, "phys_offset": copy.phys_offset}))
    assert len(world.records("T", 1)) == 1


def test_a_late_end_of_the_first_copy_ends_the_newest(
    run: Callable[..., Any], world: World
) -> None:
    row = world.send()
    for _ in range(3):
        world.clock.advance(30_000)
        run(world.service.check())
    run(world.end(row))
    (record,) = world.records("T", 1)
    assert record.prepared_offset == world.records(HALF_TOPIC)[3].phys_offset
    before = len(world.asked())
    world.clock.advance(30_000)
    run(world.service.check())
    assert len(world.asked()) == before == 3
    assert world.service.halves.half_next == 4
    assert world.service.halves.copies == {}


def test_a_replica_ends_no_transaction(run: Callable[..., Any], world: World) -> None:
    """It refuses even a finished half message, which may have a newer copy on the master."""
    row = world.send()
    run(world.end(row))
    world.store.read_only = "this broker is a replica"
    with pytest.raises(RequestError, match="replica") as refused:
        run(world.end(row))
    assert refused.value.code == 11


def test_an_end_during_a_check_back_ends_the_copy(run: Callable[..., Any], world: World) -> None:
    """While the copy is not confirmed, the end waits; it then applies to the copy."""

    async def scene() -> Response | None:
        row, confirmed = world.send(), asyncio.Event()
        world.confirm = confirmed.wait  # type: ignore[assignment]
        world.clock.advance(30_000)
        checking = asyncio.create_task(world.service.check())
        await settle()
        ending = asyncio.create_task(world.end(row))
        await settle()
        confirmed.set()
        await checking
        return await ending

    response = run(scene())
    assert (response.code, response.remark) == (0, None)
    (record,) = world.records("T", 1)
    assert record.prepared_offset == world.records(HALF_TOPIC)[1].phys_offset


def test_a_half_message_is_given_up_after_the_last_check(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    world = World(tmp_path, transaction_checks_max=2)
    world.send(b"lost", DELAY="3")
    for _ in range(5):
        world.clock.advance(30_000)
        run(world.service.check())
    assert len(world.asked()) == 2
    (record,) = world.records(GIVEN_UP_TOPIC)
    assert record.body == b"lost"
    assert GIVEN_UP_TOPIC in world.topics.known
    assert world.service.halves.half_next == world.store.queue_bounds(HALF_TOPIC, 0)[1]
    world.store.__exit__(None, None, None)


@pytest.mark.finding("E6")
def test_a_round_over_many_half_messages_yields_to_other_tasks(
    run: Callable[..., Any], world: World
) -> None:
    async def scene() -> None:
        for number in range(50):
            world.send(key=str(number))
        world.clock.advance(30_000)
        turns, round_ = 0, asyncio.create_task(world.service.check())
        while not round_.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= len(world.asked()) == 50

    run(scene())


def test_an_immune_message_does_not_delay_other_check_backs(
    run: Callable[..., Any], world: World
) -> None:
    world.send(key="a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    world.send(key="b")
    world.clock.advance(6_000)
    run(world.service.check())
    assert [request.fields["msgId"] for request in world.peer.sent] == ["b"]


def test_finished_messages_advance_the_stored_cursors(
    run: Callable[..., Any], world: World
) -> None:
    rows = [world.send(key=str(n)) for n in range(4)]
    for row in (rows[0], rows[1], rows[3]):
        run(world.end(row))
    run(world.service.check())
    assert world.offsets.query("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 2
    assert world.offsets.query("CID_RMQ_SYS_TRANS", OP_TOPIC, 0) == 2


def test_the_task_checks_back_every_interval(run: Callable[..., Any], world: World) -> None:
    async def scene() -> Any:
        world.send()
        async with world.service.running():
            for _ in range(3):
                await settle()
                world.clock.advance(30_000)
                await settle(200)
        return len(world.asked())

    assert run(scene()) == 3


def test_a_check_back_without_a_connected_producer_is_no_error(
    run: Callable[..., Any], world: World
) -> None:
    world.peer.close()
    world.send()
    world.clock.advance(6_000)
    run(world.service.check())
    assert len(world.records(HALF_TOPIC)) == 2


def test_a_given_up_message_can_be_resumed(run: Callable[..., Any], tmp_path: Path) -> None:
    world = World(tmp_path, transaction_checks_max=1)
    world.send(b"again")
    for _ in range(2):
        world.clock.advance(30_000)
        run(world.service.check())
    (lost,) = world.records(GIVEN_UP_TOPIC)
    offset_id = f"7F00000100002A9F{lost.phys_offset:016X}"
    resume = world.service.handlers()[323]
    assert run(resume(Request(323, {"msgId": offset_id}))).code == 0
    before = len(world.asked())
    world.clock.advance(30_000)
    run(world.service.check())
    assert len(world.asked()) == before + 1
    with pytest.raises(RequestError):
        run(resume(Request(323, {"msgId": "no id"})))
    world.store.__exit__(None, None, None)


def test_a_message_of_a_forbidden_topic_is_not_resumed(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(access: UnrestrictedAccess, request: Request, topic: str, *actions: Action) -> None:
        assert (topic, actions) == ("T", (Action.UPDATE,))
        raise RequestError(ResponseCode.NO_PERMISSION, "refused")

    world = World(tmp_path, transaction_checks_max=1)
    world.send()
    for _ in range(2):
        world.clock.advance(30_000)
        run(world.service.check())
    (lost,) = world.records(GIVEN_UP_TOPIC)
    halves = len(world.records(HALF_TOPIC))
    monkeypatch.setattr(UnrestrictedAccess, "check_record", refuse)
    with pytest.raises(RequestError, match="refused"):
        run(
            world.service.resume(
                Request(323, {"msgId": f"7F00000100002A9F{lost.phys_offset:016X}"})
            )
        )
    assert len(world.records(HALF_TOPIC)) == halves
    world.store.__exit__(None, None, None)


def test_a_second_end_reports_what_the_first_one_lacks(
    run: Callable[..., Any], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(end: int) -> Missing:
        return Missing.REPLICAS

    row = world.send()
    run(world.end(row))
    monkeypatch.setattr(world.store, "wait_confirmed", missing)
    with pytest.raises(RequestError) as refusal:
        run(world.end(row))
    assert refusal.value.code == Missing.REPLICAS.code


@pytest.mark.parametrize("seed", one_in(4, range(12)))
def test_every_transaction_ends_once_after_random_steps(tmp_path: Path, seed: int) -> None:
    """Run random sends, ends (also repeated and late), checks, restarts with old cursors."""

    async def scene() -> None:
        chance, world = random.Random(seed), World(tmp_path, transaction_checks_max=100)
        rows, verdicts, stale = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
        for step in range(120):
            match chance.randrange(8):
                case 0 | 1 | 2:
                    rows[f"k{step}"] = world.send(f"k{step}".encode(), key=f"k{step}")
                case 3 | 4 if rows:
                    key = chance.choice(list(rows))
                    verdict = verdicts.setdefault(key, chance.choice([COMMIT, ROLLBACK]))
                    await world.end(rows[key], verdict)
                case 5 if world.peer.sent:
                    asked = chance.choice(world.peer.sent).fields
                    key = asked["msgId"]
                    verdict = verdicts.setdefault(key, chance.choice([COMMIT, ROLLBACK]))
                    copy = {
                        "queue_offset": int(asked["tranStateTableOffset"]),
                        "phys_offset": int(asked["commitLogOffset"]),
                    }
                    await world.end(copy, verdict, fromTransactionCheck="true")
                case 6:
                    world.clock.advance(chance.choice([1_000, 30_000]))
                    await world.service.check()
                case 7:
                    world.offsets.table = dict(chance.choice([stale, world.offsets.table]))
                    world.reopen()
                    stale = dict(world.offsets.table)
        delivered = sorted(record.body.decode() for record in world.records("T", 1))
        assert delivered == sorted(key for key, verdict in verdicts.items() if verdict == COMMIT)
        world.peer.sent.clear()
        world.clock.advance(60_000)
        await world.service.check()
        asked = sorted(request.fields["msgId"] for request in world.peer.sent)  # type: ignore[assignment]
        assert asked == sorted(rows.keys() - verdicts.keys())  # type: ignore[comparison-overlap]
        world.store.__exit__(None, None, None)

    asyncio.run(scene())


@pytest.mark.finding("3S1")
def test_a_half_message_of_another_topic_is_no_copy(run: Callable[..., Any], world: World) -> None:
    """A client chooses group, key, born time and check count, but not the topic."""
    row = world.send(b"kept")
    world.send(b"forged", topic="U", TRANSACTION_CHECK_TIMES="1")
    world.reopen()
    run(world.end(row))
    assert [record.body for record in world.records("T", 1)] == [b"kept"]
