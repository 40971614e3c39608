"""Group of a controller on a busy machine: it responds late, but in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq_common.request import Request, Response
from tests.support.group_rig import LEASE_MS, LIMIT_MS, STEP_MS, Rig


@pytest.mark.finding("3D6")
def test_a_busy_controller_keeps_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses that take longer than half of the lease extend it in time."""

    async def main() -> None:
        rig = Rig(tmp_path)
        exchange = rig.network.exchange

        async def exchange_slowly(address: str, request: Request, channel: object) -> Response:
            response = await exchange(address, request, channel)
            late_ms = rig.clock.now_ms() + LEASE_MS * 2 // 3
            await rig.clock.wait(asyncio.Event(), until_ms=late_ms)
            return response

        async with rig.member(1) as (first, _):
            await rig.until(lambda: first.holds(1))
            monkeypatch.setattr(rig.network, "exchange", exchange_slowly)
            for _ in range(4 * LIMIT_MS // STEP_MS):
                await rig.run(STEP_MS)
                assert first.holds(1)
            monkeypatch.undo()
            await rig.run(LEASE_MS)  # the last slow responses arrive

    asyncio.run(main())
