"""Check rounds: one half message that cannot be checked back or read stops no other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.quarantine import QUARANTINE_TOPIC, Reason
from duemq.transactions.half_messages import CHECK_TIMES, GIVEN_UP_TOPIC
from duemq_common.errors import RequestError
from message_store.log.properties import encode_properties
from tests.duemq.transactions.conftest import World
from tests.support.bad_records import damage

FULL, DAMAGED, WITHOUT_TARGET, SOUND = "full", "damaged", "without target", "sound"
CHECKS_MAX, INTERVAL_MS = 3, 30_000


def send_full(world: World, key: str) -> int:
    """Store a half message whose properties have the maximum size; return its queue offset."""
    known = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": key, "__transactionId__": key}
    known |= {"REAL_TOPIC": "T", "REAL_QID": "1", "a": ""}
    size = len(encode_properties(known))
    row = world.send(key=key, a="x" * (32_767 - size))
    assert row["status"] == 0
    return int(row["queue_offset"])


def rounds(world: World, count: int) -> None:
    async def run() -> None:
        for _ in range(count):
            world.clock.advance(INTERVAL_MS)
            await world.service.check()

    asyncio.run(run())


@pytest.mark.finding("3D3")
def test_a_half_message_without_room_is_checked_back_and_then_given_up(world: World) -> None:
    full = send_full(world, "full")
    world.send(key="sound")
    rounds(world, 1)
    assert [offset for offset, _ in world.asked()] == [full, 2]  # 2: the copy of the other one
    rounds(world, 14)
    assert [record.properties["UNIQ_KEY"] for record in world.records(GIVEN_UP_TOPIC)] == ["full"]
    assert world.service.open_count == 1


@pytest.mark.finding("3D3")
def test_a_half_message_without_room_is_committed(run: Callable[..., Any], world: World) -> None:
    send_full(world, "full")
    rounds(world, 2)
    [half] = world.records("RMQ_SYS_TRANS_HALF_TOPIC")
    run(world.end({"queue_offset": half.queue_offset, "phys_offset": half.phys_offset}))
    assert len(world.records("T", 1)) == 1


def test_a_damaged_half_message_goes_to_quarantine(world: World) -> None:
    row = world.send(b"damaged")
    world.send(b"sound", key="v")
    damage(world.store, int(row["phys_offset"]), b"damaged")
    rounds(world, 1)
    [record] = world.records(QUARANTINE_TOPIC)
    assert record.properties["DUEMQ_REASON"] == "unreadable"
    assert b"?amaged" in record.body
    assert world.service.quarantine.counts == {Reason.UNREADABLE: 1}
    assert len(world.asked()) == 1
    rounds(world, 2)
    assert len(world.records(QUARANTINE_TOPIC)) == 1
    world.reopen()
    assert world.service.open_count == 1


def test_a_missing_topic_for_given_up_messages_ends_no_round(world: World) -> None:
    async def ensure(name: str, **rest: int) -> None:
        raise RequestError(1, "too many topics")

    world.topics.ensure = ensure  # type: ignore[assignment]
    world.send(key="given up", **{CHECK_TIMES: "99"})
    world.send(key="sound")
    rounds(world, 2)
    assert {offset for offset, _ in world.asked()} == {2, 3}
    assert world.service.open_count == 2


@settings(max_examples=25, deadline=None)
@given(kinds=st.lists(st.sampled_from([FULL, DAMAGED, WITHOUT_TARGET, SOUND]), max_size=8))
def test_every_sound_half_message_is_checked_back_in_each_round(kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root), transaction_checks_max=CHECKS_MAX)
        try:
            for number, kind in enumerate(kinds):
                if kind == FULL:
                    send_full(world, f"u{number}")
                    continue
                row = world.send(
                    b"damaged", f"u{number}", topic="T" * (1 + 200 * (kind == WITHOUT_TARGET))
                )
                if kind == DAMAGED:
                    damage(world.store, int(row["phys_offset"]), b"damaged")
            for count in range(1, CHECKS_MAX + 1):
                rounds(world, 1)
                expected = len(kinds) - kinds.count(DAMAGED)
                expected -= kinds.count(FULL) if count == CHECKS_MAX else 0
                assert len(world.asked()) == expected
                world.peer.sent.clear()
            rounds(world, 1)
            assert world.asked() == []
            assert len(world.records(GIVEN_UP_TOPIC)) == len(kinds) - kinds.count(DAMAGED)
            assert len(world.records(QUARANTINE_TOPIC)) == kinds.count(DAMAGED)
            assert world.service.open_count == 0
        finally:
            world.store.__exit__(None, None, None)
