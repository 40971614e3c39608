"""Work in steps: the same result with and without other work between them."""

from __future__ import annotations

import asyncio

import pytest

from delayed_delivery.steps import Steps, at_once, in_turns


def counted(steps: list[str], count: int) -> Steps[int]:
    for _ in range(count):
        steps.append("step")
        yield
    return count


@pytest.mark.parametrize("count", [0, 1, 3])
def test_steps_return_their_result(count: int) -> None:
    assert at_once(counted([], count)) == asyncio.run(in_turns(counted([], count))) == count


def test_other_work_runs_between_two_steps() -> None:
    events: list[str] = []

    async def other() -> None:
        for _ in range(3):
            events.append("other")
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(in_turns(counted(events, 3)), other())

    asyncio.run(main())
    assert events == ["step", "other"] * 3


def test_an_error_of_a_step_is_raised() -> None:
    def failing() -> Steps[int]:
        yield
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        at_once(failing())
    with pytest.raises(ValueError, match="here"):
        asyncio.run(in_turns(failing()))
