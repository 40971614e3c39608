"""Views of schedules: a page reads a few records at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from delayed_delivery.steps import in_turns
from recurring_schedules import journal, views
from recurring_schedules.definition import Definition
from recurring_schedules.journal import ScheduleRecord
from recurring_schedules.table import ScheduleTable
from tests.recurring_schedules.rig import ScheduleRig
from tests.support.work_per_turn import WorkPerTurn

COUNT = 10


def test_other_work_runs_between_the_records_of_a_page(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SCHEDULES_PER_STEP", 4)
    rig.open()
    for number in range(COUNT):
        rig.create(f"s{number}", every_ms=3_600_000)
    show: Any = views.admin_views(lambda: (rig.store, rig.table, rig.clock))["list"]
    work = WorkPerTurn(monkeypatch, ScheduleTable, "record")
    page: Any = asyncio.run(work.during(in_turns(show({}))))
    assert len(page["schedules"]) == COUNT
    assert (work.most, work.total) == (4, COUNT)


def test_a_schedule_with_an_unknown_zone_has_no_next_times(rig: ScheduleRig) -> None:
    rig.open()
    definition = Definition(name="s", topic="T", cron="* * * * *", zone="Mars/Olympus")
    journal.append(rig.store, ScheduleRecord(definition=definition), rig.clock.now_ms())
    show: Any = views.admin_views(lambda: (rig.store, rig.table, rig.clock))["show"]
    page: Any = asyncio.run(in_turns(show({"schedule": "s"})))
    assert (page["definition"]["zone"], page["runs"]) == ("Mars/Olympus", [])
