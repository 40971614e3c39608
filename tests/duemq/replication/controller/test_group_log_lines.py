"""Log lines of a member whose group has no master, or whose controller does not work."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from duemq_common.request import Response
from tests.support.group_rig import Rig


def test_refused_elections_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The member of the sync state set is gone, and another requests an election each second."""

    async def main() -> None:
        rig = Rig(tmp_path)
        async with AsyncExitStack() as stack:
            async with rig.member(1) as (first, _):
                await rig.until(lambda: first.holds(1))
                second, host = await stack.enter_async_context(rig.member(2))
                await rig.until(lambda: host.roles)
            await rig.until(lambda: "CONTROLLER_ELECT_MASTER" in caplog.text)
            await rig.run(5_000)
            assert second.view()["groupState"] == "no master is elected"

    asyncio.run(main())
    assert sum("CONTROLLER_ELECT_MASTER" in line for line in caplog.messages) == 1
    assert sum("only a member of the sync state set" in line for line in caplog.messages) == 1


def test_each_failure_of_a_controller_is_logged_once_until_it_responds_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """View and heartbeat fail in turn, each with its own text."""
    texts = ("CONTROLLER_GET_REPLICA_INFO with code 1", "BROKER_HEARTBEAT with code 1")

    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, _):
            for count in (1, 2):
                await rig.until(lambda: first.holds(first.member.epoch))
                rig.network.change = lambda request, response: Response(1, "system error")
                await rig.run(5_000)
                assert [sum(text in line for line in caplog.messages) for text in texts] == [
                    count
                ] * 2
                rig.network.change = lambda request, response: response

    asyncio.run(main())
