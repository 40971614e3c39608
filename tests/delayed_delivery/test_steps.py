"""Work in steps: the same result with and without other work between them."""

from __future__ import annotations

import asyncio

import pytest

from delayed_delivery import steps as steps_module
from delayed_delivery.steps import Steps, at_once, in_turns


def counted(steps: list[str], count: int) -> Steps[int]:
    for _ in range(count):
        steps.append("step")
        yield
    return count


@pytest.mark.parametrize("count", [0, 1, 3])
def test_steps_return_their_result(count: int) -> None:
    assert at_once(counted([], count)) == asyncio.run(in_turns(counted([], count))) == count


def test_other_work_runs_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "thread_processor_s", lambda: 0.0)
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


@pytest.mark.parametrize(("other_ms", "of_turn"), [(0, 1), (5, 1), (90, 2), (180, 4), (990, 20)])
def test_steps_take_a_tenth_of_the_processor_time(
    monkeypatch: pytest.MonkeyPatch, other_ms: int, of_turn: int
) -> None:
    """A step takes 5 ms. In a turn, steps begin until they have had a tenth of the other work."""
    events: list[str] = []
    used_ms = 0
    monkeypatch.setattr(steps_module, "thread_processor_s", lambda: used_ms / 1_000)

    async def other() -> None:
        nonlocal used_ms
        while True:
            events.append("other")
            used_ms += other_ms
            await asyncio.sleep(0)

    def long_work() -> Steps[None]:
        nonlocal used_ms
        for _ in range(100):
            used_ms += 5
            events.append("step")
            yield

    async def main() -> None:
        task = asyncio.create_task(other())
        await in_turns(long_work())
        task.cancel()

    asyncio.run(main())
    turns = [len(turn) for turn in "".join(each[0] for each in events).split("o")]
    assert set(turns[1:-1]) == {of_turn}
    assert turns[0] == 1
