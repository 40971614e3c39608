"""A test bench: a broker with migrations on a manual clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_migration.steps.service import MigrationService
from tests.support.running_broker import BrokerClient, running, small

PLUGINS = [
    InstalledPlugin(name, EntryPoint(name, f"{module}.plugin:create_plugin", ENTRY_POINT_GROUP))
    for module in ("duemq_migration", "schedule_service", "timer_store")
    for name in [module.removeprefix("duemq_")]
]
LEVELS = "1s 5s 10s 1m 2m"
TURNS_MAX = 2_000
WRITING_S_MAX = 240  # kernels may have to be compiled first
LEDGER_S_MAX = 120


class Bench:
    """A broker on a manual clock."""

    def __init__(self, broker: Broker, client: BrokerClient, clock: FakeClock) -> None:
        self.broker, self.client, self.clock = broker, client, clock

    @property
    def service(self) -> MigrationService:
        """Return the migration service."""
        found: MigrationService = self.broker.plugins.plugins["migration"].parts.service  # type: ignore[attr-defined]
        return found

    async def command(self, action: str, **more: Any) -> Any:
        """Send a request that must succeed; return its response."""
        response = await self.client.call(
            RequestCode.MIGRATE, body=json.dumps({"action": action, **more}).encode()
        )
        assert response.code == 0, response.remark
        return json.loads(bytes(response.body))

    async def refused(self, action: str, **more: Any) -> str:
        """Send a request that must be refused; return the reason."""
        response = await self.client.call(
            RequestCode.MIGRATE, body=json.dumps({"action": action, **more}).encode()
        )
        assert response.code != 0, bytes(response.body)
        return str(response.remark)

    async def level(self, level: int) -> dict[str, Any]:
        """Return the status of a level."""
        view = await self.command("status")
        found: dict[str, Any] = next(item for item in view["levels"] if item["level"] == level)
        return found

    async def until(self, level: int, state: str, *, step_ms: int = 10) -> dict[str, Any]:
        """Advance the clock until a level is in a state."""
        for _ in range(TURNS_MAX):
            found = await self.level(level)
            if found["state"] == state:
                return found
            await self.written()
            self.clock.advance(step_ms)
        raise AssertionError(f"level {level} is not {state}: {found}")

    async def written(self) -> None:
        """Wait for a checkpoint that is being written, which the manual clock does not do."""
        if self.service.owners is not None:
            async with asyncio.timeout(WRITING_S_MAX), self.service.owners.keeper._one_at_a_time:
                pass

    async def ledger_until(
        self, met: Callable[[dict[str, Any]], object], *, step_ms: int = 10
    ) -> dict[str, Any]:
        """Advance the clock until the ledger, written by a thread, meets a condition."""
        async with asyncio.timeout(LEDGER_S_MAX):
            while not met(ledger := (await self.command("status"))["ledger"]):
                self.clock.advance(step_ms)
        return dict(ledger)

    async def pending(self) -> tuple[int, int]:
        """Return the number of pending messages of levels and of timers."""
        levels = await self.client.call(RequestCode.GET_VIEW, {"view": "schedule_service.levels"})
        timers = await self.client.call(RequestCode.GET_VIEW, {"view": "timer_store.summary"})
        return (
            int(json.loads(bytes(levels.body))["pending"]),
            int(json.loads(bytes(timers.body))["pending"]),
        )

    async def send(self, count: int, level: int, name: str = "m") -> None:
        """Send messages of a level."""
        for number in range(count):
            response = await self.client.send(
                "T", b"%b%d" % (name.encode(), number), DELAY=str(level)
            )
            assert response.code == 0, response.remark

    def delivered(self, topic: str = "T") -> list[tuple[bytes, int]]:
        """Return (body, store time) of the delivered messages."""
        store = self.broker.store
        first, end = store.queue_bounds(topic, 0)
        found = []
        for at in range(first, end):
            record = store.read_record(int(store.units(topic, 0, at, 1)[0]["phys_offset"]))
            found.append((bytes(record.body), record.store_ms))
        return found


def with_broker(
    root: Path, work: Callable[[Bench], Any], clock: FakeClock | None = None, **properties: str
) -> FakeClock:
    """Run a broker and some work on it; return the clock."""
    clock = clock or FakeClock()

    async def main() -> None:
        settings = small(root, messageDelayLevel=LEVELS, **properties)
        async with running(settings, clock=clock, plugins=PLUGINS) as (broker, client):
            await work(Bench(broker, client, clock))

    asyncio.run(main())
    return clock
