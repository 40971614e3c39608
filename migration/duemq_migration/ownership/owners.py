"""Owners of a level's messages: level service and timer store of one broker.

They are separate plugins that start after this one, so each step looks them up. A step is one turn
of the event loop, so neither plugin stops during a step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from delayed_delivery.plugin import PluginHost
from duemq_common.errors import UsageError
from message_store.store import MessageStore
from schedule_service.delivery import LevelService
from schedule_service.levels import LevelHistory
from schedule_service.plugin import SchedulePlugin
from schedule_service.queues import ScheduleQueues
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.plugin import TimerPlugin
from timer_store.store import TimerStore

LEVELS, TIMERS = "schedule_service", "timer_store"


class NoOwners(UsageError):
    """Error: the level service or the timer store does not run."""


class Owners(Struct, frozen=True, kw_only=True):
    """Level service and timer store of one broker."""

    store: MessageStore
    levels: LevelService
    timers: TimerStore
    queues: ScheduleQueues
    history: LevelHistory
    keeper: CheckpointWriter

    @property
    def delays_ms(self) -> dict[int, int]:
        """Level to its current delay in ms."""
        delays = self.history.delays_ms
        return {level: int(delays[level]) for level in range(1, delays.size)}

    def lateness(self) -> npt.NDArray[np.int64]:
        """Return the lateness histogram of both deliveries; see `delayed_delivery.outcome`."""
        stats = [self.timers.stats, *(level.stats for level in self.levels.levels.values())]
        parts = [late.buckets for each in stats for late in each.lateness]
        return np.asarray(np.sum(parts, axis=0, dtype=np.int64))


def plugins_of(host: PluginHost) -> tuple[SchedulePlugin, TimerPlugin]:
    """Return the two plugins of a broker.

    Raises:
        NoOwners: One is missing or not DueMQ's, or timers are disabled.
    """
    levels, timers = host.plugin(LEVELS), host.plugin(TIMERS)
    if not isinstance(levels, SchedulePlugin):
        raise NoOwners(_missing("level service", LEVELS))
    if not isinstance(timers, TimerPlugin):
        raise NoOwners(_missing("timer store", TIMERS))
    if not timers.config.enabled:
        raise NoOwners(
            "this broker has no timer store (timerWheelEnable=false): set it to true and start the "
            "broker again"
        )
    return levels, timers


def _missing(part: str, name: str) -> str:
    return (
        f"this broker runs without DueMQ's {part}: install the plugin {name}, or remove it from "
        "brokerPluginDisabled, and start the broker again"
    )


def find_owners(host: PluginHost, store: MessageStore) -> Owners | None:
    """Return both owners, None while one of them does not run.

    Raises:
        NoOwners: One of them cannot run in this broker.
    """
    levels, timers = plugins_of(host)
    if levels.parts is None or timers.parts is None:
        return None
    return Owners(
        store=store,
        levels=levels.parts.service,
        timers=timers.parts.timers,
        queues=ScheduleQueues(store, levels.history),
        history=levels.history,
        keeper=timers.parts.keeper,
    )
