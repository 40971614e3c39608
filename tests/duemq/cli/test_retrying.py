"""Going on over a restart: pauses that grow, one report of each kind."""

from __future__ import annotations

import asyncio

import pytest

from duemq.cli import retrying
from duemq.cli.retrying import PAUSE_S_MAX, Retrying


@pytest.mark.finding("B22")
def test_a_server_that_is_gone_is_retried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    left = [ConnectionError("it does not answer")] * 5

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def request() -> str:
        if left:
            raise left.pop()
        return "answer"

    async def work() -> str:
        going = Retrying("it")
        while (found := await going.attempt(request)) is None:
            pass
        await going.attempt(request)
        return found

    monkeypatch.setattr(retrying.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    assert asyncio.run(work()) == "answer"
    assert pauses == [0.5, 1.0, 2.0, 4.0, PAUSE_S_MAX]
    assert capsys.readouterr().err.splitlines() == [
        "duemq: it does not answer; retrying until Ctrl-C",
        "duemq: it responds again",
    ]
