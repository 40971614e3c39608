"""Op records that a crash has lost after the records that they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duemq.transactions.half_messages import OP_TOPIC
from tests.duemq.transactions.conftest import World
from tests.support.fakes import FakeOffsets


def lose_op_record(world: World) -> None:
    """Open the store again without the last record of its log, an op record."""
    (op,) = world.records(OP_TOPIC)
    world.store.__exit__(None, None, None)
    (log,) = (world.root / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(op.phys_offset)
        file.write(bytes(op.total_size))
    (world.root / "abort").write_text("")
    (world.root / "config" / "duemq.mark").unlink()
    world.open()
    assert world.records(OP_TOPIC) == []


def test_a_commit_whose_op_record_was_lost_is_not_repeated(
    run: Callable[..., Any], world: World
) -> None:
    row = world.send()
    run(world.end(row))
    lose_op_record(world)

    async def scene() -> None:
        async with world.service.running():
            await world.end(row)

    run(scene())
    assert len(world.records("T", 1)) == 1
    assert [op.body for op in world.records(OP_TOPIC)] == [b"0"]


def test_a_check_back_whose_op_record_was_lost_leaves_one_half_message(
    run: Callable[..., Any], world: World
) -> None:
    row = world.send()
    world.clock.advance(30_000)
    run(world.service.check())
    world.offsets = FakeOffsets()  # the cursors were not written either
    lose_op_record(world)

    async def scene() -> None:
        async with world.service.running():
            before = len(world.asked())
            world.clock.advance(30_000)
            await world.service.check()
            assert len(world.asked()) == before + 1
            await world.end(row)

    run(scene())
    assert len(world.records("T", 1)) == 1
