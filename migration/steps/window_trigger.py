"""APScheduler trigger that fires when a window opens or closes."""

from __future__ import annotations

from datetime import UTC, datetime

from apscheduler.triggers.base import BaseTrigger

from migration.steps.window import Window


class WindowTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler 3 has no types
    """Trigger that fires at every change of a window; never if the window is always open.

    The job reads `window.is_open`, because after the machine was suspended, one run may cover
    several changes.
    """

    def __init__(self, window: Window) -> None:
        self.window = window

    def get_next_fire_time(
        self, previous_fire_time: datetime | None, now: datetime
    ) -> datetime | None:
        """Return the next change after both times, in UTC; None if there is none."""
        at = now if previous_fire_time is None else max(previous_fire_time, now)
        change_ms = self.window.next_change_ms(int(at.timestamp() * 1_000))
        return None if change_ms is None else datetime.fromtimestamp(change_ms / 1_000, UTC)

    def __str__(self) -> str:
        return f"window[{self.window.text}]"
