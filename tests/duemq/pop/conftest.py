"""A broker with POP over raw connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq_common.clock import FakeClock
from message_store.kernels.preparation import Preparation
from message_store.kernels.registry import KernelEntry
from tests.support.pop_client import PopClient
from tests.support.pop_frames import PopRig, pop_rig
from tests.support.running_broker import connected, running, small

TURN_S = 600.0
RunScene = Callable[..., None]


async def _never(kernels: Sequence[KernelEntry], niceness: int) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScene:
    """Run a scene with a `PopRig`; turns have no time limit."""
    monkeypatch.setattr("duemq.send.ingest.TURN_S", TURN_S)

    def run(
        scene: Callable[[PopRig], Awaitable[None]],
        *,
        compiled: bool = True,
        credentials: Credentials | None = None,
        **keys: str,
    ) -> None:
        async def main() -> None:
            clock = FakeClock()
            kernels = None if compiled else Preparation(("ingest",), _never)
            properties = small(tmp_path, **keys)
            async with (
                running(properties, clock=clock, kernels=kernels) as (broker, _),
                connected(broker.address, credentials) as client,
                pop_rig(broker, clock, client, PopClient(client, clock)) as pops,
            ):
                await scene(pops)

        asyncio.run(main())

    return run


@pytest.fixture
def run_rig(tmp_path: Path) -> Callable[..., Any]:
    """Run a scene with a broker, its clock and a client of group g."""

    def run(scene: Callable[..., Any], **keys: str) -> None:
        clock = FakeClock()

        async def main() -> Any:
            async with running(small(tmp_path, **keys), clock=clock) as (broker, remote):
                return await scene(broker, clock, remote, PopClient(remote, clock))

        return asyncio.run(main())

    return run
