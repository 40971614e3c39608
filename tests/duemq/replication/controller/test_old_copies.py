"""A member whose store is an old copy: it follows a master, and is not elected before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.group_host import GROUP
from tests.support.group_rig import Rig

NAME = GROUP.broker_name


@pytest.mark.finding("3D8")
def test_an_old_copy_is_not_elected_before_it_has_copied_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.pair() as (_, (second, host)):
            assert rig.controller.groups[NAME].in_sync == {1, 2}
            assert host.recorded
        host.election_refusal = "an old copy"
        async with rig.member(2, host=host) as (second, host):
            host.roles.clear()
            await rig.run(60_000)
            assert host.roles == []
            assert second.member.failure == "an old copy"
            async with rig.member(1) as (_, other):
                await rig.until(lambda: other.roles)
                await rig.until(lambda: host.roles)
                assert host.roles[-1][:2] == ("replica", 1)
                host.election_refusal = ""
                other.caught_up = frozenset({2})
                await rig.until(lambda: rig.controller.groups[NAME].in_sync == {1, 2})
            await rig.until(lambda: second.holds(second.member.epoch))

    asyncio.run(main())
