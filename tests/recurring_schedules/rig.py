"""Store with timers and schedules on a fake clock, which can be killed and reopened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from duemq_common.topics import SCHEDULES_TOPIC
from recurring_schedules.checkpoint import ScheduleCheckpoints
from recurring_schedules.definition import Definition
from recurring_schedules.planner import Planner
from recurring_schedules.plugin import JournalDispatcher, recovered_table
from recurring_schedules.requests import ScheduleRequests
from tests.support.inline_loop import run_inline
from tests.support.timer_rig import TimerRig
from timer_store.pending.lookup import PendingTimers

MONDAY_MS = 1_767_571_200_000  # 2026-01-05T00:00Z


class ScheduleRig(TimerRig):
    """Timers with schedules."""

    def __init__(self, root: Path, clock: FakeClock | None = None, **config: Any) -> None:
        super().__init__(root, clock or FakeClock(MONDAY_MS), **config)

    def open(self) -> ScheduleRig:
        """Recover, as a start of the plugin does."""
        super().open()
        self.table = recovered_table(self.store)
        self.planner = Planner(self.store, self.table, self.clock, [self.hook])
        pending = PendingTimers(self.timers)
        self.requests = ScheduleRequests(self.store, self.table, self.planner, pending, self.clock)
        on_journal = JournalDispatcher(self.store, self.table, self.planner.wake)
        self.store.add_dispatcher(on_journal, topic=SCHEDULES_TOPIC)
        self.checkpoints = ScheduleCheckpoints(self.store, self.table, self.clock)
        run_inline(self.requests.finish_withdrawals())
        self.settle()
        return self

    def call(self, action: str, name: str, body: bytes = b"", **more: object) -> Any:
        """Return the result of a request."""
        fields = {"action": action, "name": name, "topic": "T"}
        fields |= {key: str(value) for key, value in more.items()}
        response = run_inline(
            self.requests.handle(Request(RequestCode.CHANGE_SCHEDULE, fields, body))
        )
        return json.loads(bytes(response.body))

    def create(self, name: str = "s", **values: Any) -> Any:
        """Create a schedule of topic T."""
        definition = Definition(name=name, **({"topic": "T", "body": b"hello"} | values))
        body = msgspec.json.encode(definition)
        return self.call("create", name, body, topic=definition.topic)

    def settle(self) -> None:
        """Plan and deliver all that is due at this time."""
        while self.planner.turn(self.clock.now_ms()):
            pass
        self.work()

    def run_to(self, end_ms: int) -> None:
        """Move the clock from event to event."""
        while True:
            self.settle()
            now_ms = self.clock.now_ms()
            turn_ms = self.planner.next_turn_ms(now_ms)
            step_ms = min(turn_ms or end_ms, self.timers.next_work_ms(now_ms), end_ms)
            if now_ms >= end_ms:
                return
            self.clock.set_ms(max(step_ms, now_ms + 1))

    def occurrences(self, name: str = "s") -> list[tuple[int, int]]:
        """Return (planned time, store time) of the delivered messages of a schedule, in order."""
        records = [record for queue in range(4) for record in self.delivered("T", queue)]
        return sorted(
            (int(record.properties["DUEMQ_SCHEDULE_TIME"]), record.store_ms)
            for record in records
            if record.properties.get("DUEMQ_SCHEDULE") == name
        )

    def planned(self, name: str = "s") -> list[int]:
        """Return the planned times of the delivered messages of a schedule."""
        return [planned_ms for planned_ms, _ in self.occurrences(name)]
