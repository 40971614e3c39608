"""Pauses between elections: longer after each one, none after a stable term."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.replication.controller.election_back_off import ElectionBackOff
from duemq_common.codes import RequestCode
from tests.support.group_rig import BEAT_MS, LIMIT_MS, Rig

ELECT = RequestCode.CONTROLLER_ELECT_MASTER


def back_off() -> ElectionBackOff:
    return ElectionBackOff(500, 3_000)


def pauses_of(elections: ElectionBackOff, count: int) -> list[int]:
    """Return the pauses after `count` elections, each requested as soon as it may be."""
    pauses, now_ms = [], 0
    for _ in range(count):
        elections.elected(now_ms)
        pauses.append(elections.left_ms(now_ms))
        now_ms += pauses[-1]
        assert elections.left_ms(now_ms) == 0
    return pauses


def test_a_pause_doubles_up_to_two_limits() -> None:
    elections = back_off()
    assert elections.left_ms(0) == 0
    assert pauses_of(elections, 6) == [500, 1_000, 2_000, 4_000, 6_000, 6_000]


@pytest.mark.parametrize(
    ("views", "is_stable"),
    [
        ([(1, 3, 0), (1, 3, 9_000)], True),
        ([(1, 3, 0), (1, 3, 8_999)], False),
        ([(1, 3, 0), (1, 4, 5_000), (1, 4, 9_000)], False),
        ([(1, 3, 0), (2, 3, 5_000), (2, 3, 9_000)], False),
        ([(None, 3, 0), (None, 3, 9_000)], False),
        ([(1, 3, 0), (None, 4, 100), (1, 5, 200), (1, 5, 9_100)], False),
    ],
    ids=["stable", "short", "new epoch", "new master", "no master", "vacant between"],
)
def test_a_stable_term_ends_the_back_off(
    views: list[tuple[int | None, int, int]], is_stable: bool
) -> None:
    elections = back_off()
    pauses_of(elections, 3)
    for view in views:
        elections.seen(*view)
    assert (elections.pause_ms == 0) == is_stable
    assert elections.left_ms(0) == 0 if is_stable else elections.left_ms(0) > 0


def test_refused_elections_back_off_and_are_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No member of the sync state set is alive."""

    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, _), rig.member(2) as (second, host):
            await rig.until(lambda: host.roles)
            rig.network.cut_off.add(1)
            rig.network.cut(rig.network.links[0])
            await rig.until(lambda: ELECT in rig.network.requested[-3:])
            rig.network.requested.clear()
            await rig.run(60_000)
            assert 10 <= rig.network.requested.count(ELECT) <= 14
            pause_ms = second.view()["electionPauseMs"]
            assert isinstance(pause_ms, int)
            assert 0 <= pause_ms <= 2 * LIMIT_MS
            rig.network.cut_off.clear()
            await rig.until(lambda: first.holds(first.member.epoch))
            await rig.run(3 * LIMIT_MS + 2 * BEAT_MS)
            assert second.view()["electionPauseMs"] == 0

    asyncio.run(main())
    lines = [line for line in caplog.messages if line.startswith("elections repeat")]
    assert [line.split()[-4] for line in lines[:4]] == ["1000", "2000", "4000", "6000"]
