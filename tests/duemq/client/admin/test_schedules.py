"""Recurring schedules through `Admin`, against a broker in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.client import Admin, Message, Producer, Refused, Unsupported
from recurring_schedules.definition import Definition, InvalidDefinition
from tests.support.running_broker import running, small

Run = Callable[..., Any]
DAILY = Definition(name="daily", topic="T", cron="0 9 * * *", zone="Europe/Berlin", body=b"x")


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Admin]:
    async with (
        running(small(root)) as (broker, _),
        Admin(broker=broker.address) as admin,
    ):
        await Producer(client=admin.client).send(Message("T", b"creates the topic"))
        yield admin


def test_a_schedule_is_created_listed_changed_and_deleted(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as admin:
            created = await admin.create_schedule(DAILY)
            assert (created.created, created.state) == (True, "active")
            assert not (await admin.create_schedule(DAILY)).created
            [listed] = await admin.schedules("T")
            assert listed.definition == DAILY
            assert (listed.broker, listed.planned_ms) == (admin.client.broker, created.planned_ms)
            assert await admin.schedules("Other") == []
            shown = await admin.schedule("daily", runs=3)
            assert (len(shown.runs), shown.has_ended) == (3, False)
            assert (await admin.pause_schedule("daily", "a test")).state == "paused"
            assert (await admin.schedule("daily")).note == "a test"
            assert (await admin.resume_schedule("daily")).state == "active"
            assert (await admin.trigger_schedule("daily")).appended == 1
            until = datetime(2026, 1, 10, 12, tzinfo=UTC)  # days of 24 hours
            done = await admin.backfill_schedule("daily", until - timedelta(days=2), until)
            assert done.appended == 2
            await admin.delete_schedule("daily")
            assert await admin.schedules() == []

    run(main())


def test_what_is_refused(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as admin:
            await admin.create_schedule(DAILY)
            for other in ({"topic": "U"}, {"body": b"y"}):
                definition = Definition(**{**_fields(DAILY), **other})
                with pytest.raises(Refused, match="another definition"):
                    await admin.create_schedule(definition)
            with pytest.raises(Refused, match="invalid"):
                await admin.create_schedule(Definition(name="never", topic="T", cron="0 0 31 2 *"))
            with pytest.raises(InvalidDefinition):
                await admin.create_schedule(Definition(name="a b", topic="T", cron="0 0 * * *"))
            with pytest.raises(Refused, match="there is no schedule 'missing'"):
                await admin.pause_schedule("missing")
            naive = datetime(2026, 1, 1)  # noqa: DTZ001
            with pytest.raises(ValueError, match="has no time zone"):
                await admin.backfill_schedule(DAILY.name, naive, datetime.now(UTC))

    run(main())


def test_a_broker_without_schedules(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path), plugins=[]) as (broker, _),
            Admin(broker=broker.address) as admin,
        ):
            with pytest.raises((Refused, Unsupported)):
                await admin.schedules()

    run(main())


def _fields(definition: Definition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in definition.__struct_fields__}
