"""Recovery after several faults."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from duemq_common.clock import FakeClock
from tests.support.level_rig import level_service


def test_offsets_of_a_lost_log_end_are_ignored(
    tmp_path: Path,
) -> None:
    """delayOffset.json has 3 delivered, but the log lost that part and grew again before a kill."""
    clock = FakeClock()

    async def main() -> list[bytes]:
        async with level_service(tmp_path, clock) as rig:
            rig.send(1, count=3)
            await rig.advance(1_000)
            assert await rig.persist()
        shutil.rmtree(tmp_path / "commitlog")
        shutil.rmtree(tmp_path / "consumequeue")
        async with level_service(tmp_path, clock) as rig:
            rig.send(1, b"new" * 1_000, count=5)
            rig.crash()
        async with level_service(tmp_path, clock) as rig:
            await rig.advance(1_000)
            return rig.bodies()

    assert asyncio.run(main()) == [b"new" * 1_000 + b"%d" % number for number in range(5)]
