"""Decisions find messages whose owner or record has changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duemq.messages.decide import DecideProcessor
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.index.key_search import frames
from message_store.log.offset_id import encode_offset_id
from schedule_service.decisions import PendingLevels
from tests.support.migration_rig import MigrationRig
from timer_store.pending.lookup import PendingTimers

LEVEL = 4  # of a minute
COUNT = 600  # more than one piece of a lookup


class Deciding:
    """Decision requests to a store without a broker."""

    def __init__(self, rig: MigrationRig) -> None:
        levels = PendingLevels(rig.store, rig.queues, rig.levels, rig.clock)
        ports: list[Any] = [PendingTimers(rig.timers), levels]
        self._processor = DecideProcessor(rig.store, lambda: ports, rig.hooks, rig.clock, "test")

    async def decide(self, code: int, **command: Any) -> list[tuple[str, int]]:
        body = json.dumps(command).encode()
        response = await self._processor.decide(Request(code, {}, body))
        results = json.loads(bytes(response.body))["results"]
        return [(result["verdict"], result.get("messages", 0)) for result in results]


@pytest.mark.parametrize("names", [{"keys": ["k"]}, {"ids": ["u"]}], ids=["key", "id"])
def test_messages_that_are_transferred_during_a_lookup_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]
) -> None:
    """The timers are searched first, and do not own the messages yet; the levels no longer do."""
    rig = MigrationRig(tmp_path).open()
    for first in range(0, COUNT, 100):
        bodies = range(first, first + 100)
        rig.send([(LEVEL, "T", 0, b"%d" % body) for body in bodies], KEYS="k", UNIQ_KEY="u")

    def transfer_all() -> None:
        while rig.drain.step(LEVEL, COUNT).moved:
            pass

    def transfer_after(*records: Any) -> Any:
        if rig.level_pending == COUNT:  # steps of the migration between two pieces of the lookup
            asyncio.get_running_loop().call_soon(transfer_all)
        return frames(*records)

    monkeypatch.setattr("schedule_service.decisions.frames", transfer_after)
    cancelled = asyncio.run(Deciding(rig).decide(RequestCode.CANCEL_PENDING, **names))
    assert cancelled == [("done", COUNT)]
    assert (rig.level_pending, rig.timers.counts.total) == (0, 0)
    rig.advance(61_000)
    assert rig.delivered() == []
    rig.close()


def test_messages_that_return_to_their_level_between_lookup_and_decision_are_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback of a route copies timers into the queue of their level."""
    rig = MigrationRig(tmp_path).open()
    rig.route(LEVEL)
    rig.send([(LEVEL, "T", 0, b"%d" % body) for body in range(20)], KEYS="k", UNIQ_KEY="u")
    apply = DecideProcessor.apply

    def apply_after_return(*decision: Any) -> Any:
        if rig.timers.counts.total:
            assert rig.routed_return.step(LEVEL, COUNT).moved == 20
        return apply(*decision)

    monkeypatch.setattr(DecideProcessor, "apply", apply_after_return)
    cancelled = asyncio.run(Deciding(rig).decide(RequestCode.CANCEL_PENDING, keys=["k"]))
    assert cancelled == [("done", 20)]
    assert (rig.level_pending, rig.timers.counts.total) == (0, 0)
    rig.advance(61_000)
    assert rig.delivered() == []
    rig.close()


def offset_id(rig: MigrationRig, phys_offset: int) -> str:
    return encode_offset_id(*rig.store.read_record(phys_offset).store_host, phys_offset)


@pytest.mark.parametrize("moves", [1, 2])
def test_the_first_offset_id_of_a_moved_level_message_names_the_timer(
    tmp_path: Path, moves: int
) -> None:
    rig = MigrationRig(tmp_path).open()
    row = rig.send([(LEVEL, "T", 0, b"x")], UNIQ_KEY="u").rows[0]
    name, deciding = offset_id(rig, int(row["phys_offset"])), Deciding(rig)
    for _ in range(moves):
        moved = asyncio.run(deciding.decide(RequestCode.MOVE_PENDING, ids=[name], delay_ms=5_000))
        assert moved == [("done", 1)]
    for expected in (1, 0):  # the second cancel reports that of the first one
        cancelled = asyncio.run(deciding.decide(RequestCode.CANCEL_PENDING, ids=[name]))
        assert cancelled == [("done", expected)]
    rig.advance(61_000)
    assert rig.delivered() == []
    assert asyncio.run(deciding.decide(RequestCode.FIRE_PENDING, ids=[name])) == [("unknown", 0)]
    rig.close()


def test_the_offset_id_of_a_timer_names_the_message_that_returned_to_its_level(
    tmp_path: Path,
) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(LEVEL)
    rows = [
        rig.send([(LEVEL, "T", 0, b"%d" % number)], UNIQ_KEY=f"u{number}").rows[0]
        for number in range(2)
    ]
    names = [offset_id(rig, int(row["phys_offset"])) for row in rows]
    assert rig.routed_return.step(LEVEL, 10).moved == 2
    deciding = Deciding(rig)
    assert asyncio.run(deciding.decide(RequestCode.CANCEL_PENDING, ids=names[:1])) == [("done", 1)]
    assert (rig.level_pending, rig.timers.counts.total) == (1, 0)
    rig.advance(61_000)
    assert [record.body for record in rig.delivered()] == [b"1"]
    for name in names:
        [(verdict, _)] = asyncio.run(deciding.decide(RequestCode.CANCEL_PENDING, ids=[name]))
        assert verdict == ("done" if name == names[0] else "already delivered")
    rig.close()
