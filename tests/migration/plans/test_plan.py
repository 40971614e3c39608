"""Plans as text, and refused plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_migration.plans.plan import (
    AGE_MS_MAX,
    PLAN_BYTES_MAX,
    Obstacle,
    ObstacleKind,
    Plan,
    PlanError,
    PlannedLevel,
    check,
    from_json,
    new_id,
    to_json,
)

NOW_MS = 1_795_278_600_000
PLAN = Plan(
    plan_id="plan-20261121-163000-1f2e",
    store_id="s-1",
    made_ms=NOW_MS,
    made_by="anna",
    log_end=4_096,
    levels=[
        PlannedLevel(level=3, delay_ms=10_000, pending=7, unit_bytes=364, estimate_ms=2),
        PlannedLevel(level=5, delay_ms=60_000, pending=1, unit_bytes=52, estimate_ms=1),
    ],
    obstacles=[Obstacle(kind=ObstacleKind.UNREADABLE, level=3, count=1, text="1 is unreadable")],
)
DELAYS = {3: 10_000, 4: 30_000, 5: 60_000}
NUMBERS = st.integers(0, 2**63 - 1)


def checked(plan: Plan = PLAN, **changes: Any) -> None:
    check(plan, **({"store_id": "s-1", "delays_ms": DELAYS, "now_ms": NOW_MS} | changes))


@given(
    st.builds(
        Plan,
        plan_id=st.text(),
        store_id=st.text(),
        made_ms=NUMBERS,
        made_by=st.text(),
        levels=st.lists(
            st.builds(PlannedLevel, level=NUMBERS, delay_ms=NUMBERS, first_due_ms=st.none()),
            max_size=3,
        ),
        obstacles=st.lists(st.builds(Obstacle, text=st.text()), max_size=3),
    )
)
def test_plans_round_trip(plan: Plan) -> None:
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not a plan"),
        ("[]", "is not a plan"),
        ('{"plan_id": "p"}', "store_id"),
        (to_json(PLAN).replace('"anna"', "7"), "made_by"),
        (b"\xff\xfe", "is not a plan"),
        (" " * (PLAN_BYTES_MAX + 1), "longer than"),
    ],
    ids=["torn", "a list", "a field lacks", "a wrong type", "no text", "too long"],
)
def test_other_text_is_refused(text: str | bytes, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        from_json(text, source="plan.json")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"store_id": "s-2"}, "made for store s-1, this is store s-2"),
        ({"now_ms": NOW_MS + AGE_MS_MAX + 1}, "7 days old"),
        ({"now_ms": NOW_MS - 5_000}, "5 s in the future: the clock was set back"),
        ({"levels": [4]}, r"level 4 is not in it \(its levels: 3, 5\)"),
        ({"delays_ms": {3: 10_000}}, "level 5 no longer exists"),
        ({"delays_ms": DELAYS | {5: 90_000}}, "level 5 meant 60000 ms .* means 90000 ms now"),
    ],
    ids=["another store", "old", "clock set back", "not planned", "level gone", "level changed"],
)
def test_a_plan_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=f"plan-20261121-163000-1f2e: .*{why}.*migrate plan"):
        checked(**changes)


def test_a_plan_is_accepted_for_its_store_until_it_is_outdated() -> None:
    checked()
    checked(now_ms=NOW_MS + AGE_MS_MAX)
    checked(levels=[3], delays_ms={3: 10_000})  # level 5 may change because it is not started


def test_a_plan_with_a_blocking_obstacle_is_refused() -> None:
    obstacle = Obstacle(kind=ObstacleKind.NO_ROOM, text="free space", blocks=True)
    with pytest.raises(PlanError, match="free space"):
        checked(replace(PLAN, obstacles=[obstacle]))


def test_ids_contain_the_time() -> None:
    assert new_id("plan", NOW_MS, b"\x1f\x2e") == "plan-20261121-163000-1f2e"
