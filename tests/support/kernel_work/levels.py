"""Workload of the level service: delivery and a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.level_rig import level_service


def deliver_levels(root: Path) -> None:
    """Send to two levels and deliver one."""
    asyncio.run(_deliver(root))


async def _deliver(root: Path) -> None:
    async with level_service(root) as rig:
        rig.send(1, count=100)
        rig.send(2)
        await rig.advance(2_000)
        assert len(rig.bodies()) == 100
