"""At no time does a broker let retention remove a log file with pending messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.broker.jobs import RETENTION_JOB
from duemq_common.clock import FakeClock
from message_store.retention.pins import UNKNOWN
from message_store.store import MessageStore
from schedule_service.delay_offset_writer import DelayOffsetWriter
from schedule_service.delivery import LevelService
from tests.support.running_broker import BrokerClient, running, small
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.store import TimerStore

COUNT = 5
HOUR_MS = 3_600_000
ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))


def expiring(root: Path, **more: str) -> dict[str, str]:
    """Return the properties of a broker that removes each log file that nothing pins."""
    return small(root, fileReservedTime="0", deleteWhen=ALL_HOURS, **more)


async def send_pending(client: BrokerClient, **properties: str) -> None:
    for number in range(COUNT):
        assert (await client.send("T", b"%d" % number, **properties)).code == 0
    for _ in range(8):
        assert (await client.send("Other", b"x" * 30_000)).code == 0


def age(store: MessageStore) -> None:
    """Make every log file old."""
    for file in store.log.files:
        os.utime(file.path, (0, 0))


def clean(store: MessageStore) -> int:
    """Run rounds of retention; return how many files they removed."""
    age(store)
    store.flush()
    return sum(store.retention.clean() for _ in range(3))


class Windows:
    """Runs retention at chosen times in the run of plugins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store: Any = None
        self.passed: list[str] = []
        self.removed = 0
        for owner, method in (
            (TimerStore, "open"),
            (CheckpointWriter, "persist"),
            (CheckpointWriter, "persist_last"),
            (DelayOffsetWriter, "persist"),
            (LevelService, "__init__"),
        ):
            self._around(monkeypatch, owner, method)

    def _around(self, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str) -> None:
        real = getattr(owner, method)

        def wrapped(*values: Any, **more: Any) -> Any:
            found = real(*values, **more)
            self.passed.append(f"{owner.__name__}.{method}")
            if self.store is not None and self.store.log.files:
                self.removed += clean(self.store)
            return found

        monkeypatch.setattr(owner, method, wrapped)


@pytest.mark.finding("A1")
@pytest.mark.parametrize(
    "properties",
    [{"TIMER_DELAY_SEC": "3600"}, {"DELAY": "17"}],
    ids=["timers", "levels"],
)
def test_no_round_removes_what_is_pending_while_plugins_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    clock = FakeClock()
    windows = Windows(monkeypatch)
    real = MessageStore.__enter__

    def entered(store: MessageStore) -> MessageStore:
        windows.store = real(store)
        return store

    monkeypatch.setattr(MessageStore, "__enter__", entered)

    async def main() -> None:
        async with running(expiring(tmp_path), clock=clock) as (broker, client):
            await send_pending(client, **properties)
            assert broker.store.retention.first_pinned() == 0
        async with running(expiring(tmp_path), clock=clock) as (broker, client):
            assert broker.store.log.min_offset == 0
            clock.advance(2 * HOUR_MS)
            response = await client.pull("T", COUNT - 1)
            assert response.code == 0

    asyncio.run(main())
    assert windows.removed == 0
    wanted = {"TimerStore.open", "CheckpointWriter.persist_last", "DelayOffsetWriter.persist"}
    assert wanted <= {*windows.passed}


@pytest.mark.finding("A1")
def test_the_retention_job_is_the_last_to_begin_and_the_first_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, bool] = {}

    def note(owner: Any, method: str) -> None:
        real: Callable[..., Awaitable[Any]] = getattr(owner, method)

        async def noted(self: Any, *values: Any, **more: Any) -> Any:
            broker = brokers[0]
            seen[method] = broker.scheduler.get_job(RETENTION_JOB) is not None
            return await real(self, *values, **more)

        monkeypatch.setattr(owner, method, noted)

    note(CheckpointWriter, "persist")
    note(CheckpointWriter, "persist_last")
    brokers: list[Broker] = []

    async def main() -> None:
        brokers.append(Broker(expiring(tmp_path), clock=FakeClock()))
        async with brokers[0] as broker:
            assert seen == {"persist": False}
            assert broker.scheduler.get_job(RETENTION_JOB) is not None
        assert seen["persist_last"] is False

    asyncio.run(main())


@pytest.mark.finding("A1")
@pytest.mark.parametrize(
    ("properties", "disabled"),
    [
        ({"TIMER_DELAY_SEC": "3600"}, {"brokerPluginDisabled": "timer_store"}),
        ({"TIMER_DELAY_SEC": "3600"}, {"timerWheelEnable": "false"}),
        ({"DELAY": "17"}, {"brokerPluginDisabled": "schedule_service;migration"}),
    ],
    ids=["timers not loaded", "timers off", "levels not loaded"],
)
def test_a_disabled_plugin_still_pins_what_it_left(
    tmp_path: Path, properties: dict[str, str], disabled: dict[str, str]
) -> None:
    clock = FakeClock()

    async def main() -> None:
        async with running(expiring(tmp_path), clock=clock) as (_, client):
            await send_pending(client, **properties)
        async with running(expiring(tmp_path, **disabled), clock=clock) as (broker, _):
            assert broker.store.retention.first_pinned() == 0
            assert clean(broker.store) == 0
        async with running(expiring(tmp_path), clock=clock) as (_, client):
            clock.advance(2 * HOUR_MS)
            assert (await client.pull("T", COUNT - 1)).code == 0
        async with running(expiring(tmp_path, **disabled), clock=clock) as (broker, _):
            assert broker.store.retention.first_pinned() is None
            assert clean(broker.store) > 0

    asyncio.run(main())


@pytest.mark.finding("A1")
def test_files_that_cannot_be_read_pin_everything(tmp_path: Path) -> None:
    clock = FakeClock()

    async def main() -> None:
        async with running(expiring(tmp_path), clock=clock) as (_, client):
            await send_pending(client, DELAY="17")
        for path in (tmp_path / "store" / "config").glob("delayOffset.json*"):
            path.write_text("{")
        less = expiring(tmp_path, brokerPluginDisabled="schedule_service;migration")
        async with running(less, clock=clock) as (broker, client):
            assert broker.store.retention.first_pinned() is UNKNOWN
            assert clean(broker.store) == 0
            assert broker.store.retention.pinned

    asyncio.run(main())
