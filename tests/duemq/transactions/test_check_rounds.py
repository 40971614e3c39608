"""Check rounds: one half message that cannot be checked back or read stops no other."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.quarantine import Reason
from duemq.transactions.half_messages import CHECK_TIMES, HalfMessages
from duemq_common.errors import RequestError
from duemq_common.topics import CHECK_MAX_TIME_TOPIC, QUARANTINE_TOPIC
from message_store.log.properties import encode_properties
from tests.duemq.transactions.conftest import Rig
from tests.support.bad_records import damage
from tests.support.work_per_turn import WorkPerTurn

FULL, DAMAGED, WITHOUT_TARGET, SOUND = "full", "damaged", "without target", "sound"
CHECKS_MAX, INTERVAL_MS = 3, 30_000


def send_full(rig: Rig, key: str) -> int:
    """Store a half message whose properties have the maximum size; return its queue offset."""
    known = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": key, "__transactionId__": key}
    known |= {"REAL_TOPIC": "T", "REAL_QID": "1", "a": ""}
    size = len(encode_properties(known))
    row = rig.send(key=key, a="x" * (32_767 - size))
    assert row["status"] == 0
    return int(row["queue_offset"])


def rounds(rig: Rig, count: int) -> None:
    async def run() -> None:
        for _ in range(count):
            rig.clock.advance(INTERVAL_MS)
            await rig.service.check()

    asyncio.run(run())


@pytest.mark.finding("3D3")
def test_a_half_message_without_room_is_checked_back_and_then_given_up(rig: Rig) -> None:
    full = send_full(rig, "full")
    rig.send(key="sound")
    rounds(rig, 1)
    assert [offset for offset, _ in rig.requested()] == [full, 2]  # 2: the copy of the other one
    rounds(rig, 14)
    assert [record.properties["UNIQ_KEY"] for record in rig.records(CHECK_MAX_TIME_TOPIC)] == [
        "full"
    ]
    assert rig.service.queue.open_count == 1


@pytest.mark.finding("3D3")
def test_a_half_message_without_room_is_committed(run: Callable[..., Any], rig: Rig) -> None:
    send_full(rig, "full")
    rounds(rig, 2)
    [half] = rig.records("RMQ_SYS_TRANS_HALF_TOPIC")
    run(rig.end({"queue_offset": half.queue_offset, "phys_offset": half.phys_offset}))
    assert len(rig.records("T", 1)) == 1


def test_a_damaged_half_message_goes_to_quarantine(rig: Rig) -> None:
    row = rig.send(b"damaged")
    rig.send(b"sound", key="v")
    damage(rig.store, int(row["phys_offset"]), b"damaged")
    rounds(rig, 1)
    [record] = rig.records(QUARANTINE_TOPIC)
    assert record.properties["DUEMQ_REASON"] == "unreadable"
    assert b"?amaged" in record.body
    assert rig.service.quarantine.counts == {Reason.UNREADABLE: 1}
    assert len(rig.requested()) == 1
    rounds(rig, 2)
    assert len(rig.records(QUARANTINE_TOPIC)) == 1
    rig.reopen()
    assert rig.service.queue.open_count == 1


def test_a_missing_topic_for_given_up_messages_ends_no_round(rig: Rig) -> None:
    async def ensure(name: str, **rest: int) -> None:
        raise RequestError(1, "too many topics")

    rig.topics.ensure = ensure  # type: ignore[assignment]
    rig.send(key="given up", **{CHECK_TIMES: "99"})
    rig.send(key="sound")
    rounds(rig, 2)
    assert {offset for offset, _ in rig.requested()} == {2, 3}
    assert rig.service.queue.open_count == 2


@settings(max_examples=25, deadline=None)
@given(kinds=st.lists(st.sampled_from([FULL, DAMAGED, WITHOUT_TARGET, SOUND]), max_size=8))
def test_every_sound_half_message_is_checked_back_in_each_round(kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        rig = Rig(Path(root), transaction_checks_max=CHECKS_MAX)
        try:
            for number, kind in enumerate(kinds):
                if kind == FULL:
                    send_full(rig, f"u{number}")
                    continue
                row = rig.send(
                    b"damaged", f"u{number}", topic="T" * (1 + 200 * (kind == WITHOUT_TARGET))
                )
                if kind == DAMAGED:
                    damage(rig.store, int(row["phys_offset"]), b"damaged")
            for count in range(1, CHECKS_MAX + 1):
                rounds(rig, 1)
                expected = len(kinds) - kinds.count(DAMAGED)
                expected -= kinds.count(FULL) if count == CHECKS_MAX else 0
                assert len(rig.requested()) == expected
                rig.peer.sent.clear()
            rounds(rig, 1)
            assert rig.requested() == []
            assert len(rig.records(CHECK_MAX_TIME_TOPIC)) == len(kinds) - kinds.count(DAMAGED)
            assert len(rig.records(QUARANTINE_TOPIC)) == kinds.count(DAMAGED)
            assert rig.service.queue.open_count == 0
        finally:
            rig.store.__exit__(None, None, None)


def test_any_number_of_immune_messages_delays_other_check_backs_by_some_rounds_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client requests immunity times of years; its messages filled each round."""
    module = "duemq.transactions.transactions"
    monkeypatch.setattr(f"{module}.STEPS_PER_ROUND_MAX", 2)
    monkeypatch.setattr(f"{module}.READS_PER_ROUND_MAX", 10, raising=False)
    for number in range(25):
        rig.send(key=f"immune-{number}", CHECK_IMMUNITY_TIME_IN_SECONDS="999999999")
    keys = {f"{number}" for number in range(5)}
    for key in sorted(keys):
        rig.send(key=key)
    rounds(rig, 5)
    assert {request.fields["msgId"] for request in rig.peer.sent} == keys
    assert rig.service.queue.halves.half_next == 0


def test_a_round_passes_finished_messages_in_turns(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client sends a half message with an immunity time, and many others are finished."""
    monkeypatch.setattr("duemq.transactions.transactions.OFFSETS_PER_TURN", 10)
    row = rig.send(key="immune", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    count, halves = 100, rig.service.queue.halves
    for number in range(1, count):
        rig.send(key=f"{number}")
        halves.finish(number)
    passed = WorkPerTurn(monkeypatch, HalfMessages, "is_finished")
    asyncio.run(passed.during(rig.service.check()))
    assert (passed.total, halves.half_next) == (count, 0)
    assert passed.most <= 10

    halves.finish(int(row["queue_offset"]))
    done: list[int] = []

    async def follow() -> None:
        while True:
            done.append(halves.half_next)
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(follow())
        await rig.service.check()
        task.cancel()

    asyncio.run(main())
    assert halves.half_next == count
    assert max(later - earlier for earlier, later in itertools.pairwise([*done, count])) <= 10
