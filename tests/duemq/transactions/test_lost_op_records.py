"""Op records that a crash has lost after the records that they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duemq_common.topics import OP_HALF_TOPIC
from tests.duemq.transactions.conftest import Rig
from tests.support.fakes import FakeOffsets


def lose_op_record(rig: Rig) -> None:
    """Open the store again without the last record of its log, an op record."""
    (op,) = rig.records(OP_HALF_TOPIC)
    rig.store.__exit__(None, None, None)
    (log,) = (rig.root / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(op.phys_offset)
        file.write(bytes(op.total_size))
    (rig.root / "abort").write_text("")
    (rig.root / "config" / "duemq.mark").unlink()
    rig.open()
    assert rig.records(OP_HALF_TOPIC) == []


def test_a_commit_whose_op_record_was_lost_is_not_repeated(
    run: Callable[..., Any], rig: Rig
) -> None:
    row = rig.send()
    run(rig.end(row))
    lose_op_record(rig)

    async def scene() -> None:
        async with rig.service.running():
            await rig.end(row)

    run(scene())
    assert len(rig.records("T", 1)) == 1
    assert [op.body for op in rig.records(OP_HALF_TOPIC)] == [b"0"]


def test_a_check_back_whose_op_record_was_lost_leaves_one_half_message(
    run: Callable[..., Any], rig: Rig
) -> None:
    row = rig.send()
    rig.clock.advance(30_000)
    run(rig.service.check())
    rig.offsets = FakeOffsets()  # the cursors were not written either
    lose_op_record(rig)

    async def scene() -> None:
        async with rig.service.running():
            before = len(rig.requested())
            rig.clock.advance(30_000)
            await rig.service.check()
            assert len(rig.requested()) == before + 1
            await rig.end(row)

    run(scene())
    assert len(rig.records("T", 1)) == 1
