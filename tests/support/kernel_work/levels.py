"""Workload of the level service: delivery and a cancel."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from delayed_delivery.pending import Verdict
from tests.support.level_rig import level_service


def deliver_levels(root: Path) -> None:
    """Send to two levels, deliver one, and cancel the message of the other."""
    asyncio.run(_deliver(root))


async def _deliver(root: Path) -> None:
    async with level_service(root) as rig:
        rig.send(1, count=100)
        offset = int(rig.send(2).rows[0]["phys_offset"])
        await rig.advance(2_000)
        assert len(rig.bodies()) == 100
        assert rig.plugin.parts is not None
        decided = rig.plugin.parts.pending_levels.cancel(np.array([offset], np.int64))
        assert decided.verdicts.tolist() == [Verdict.DONE]
