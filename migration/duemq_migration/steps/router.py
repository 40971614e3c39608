"""Put hook of routed levels: their new messages become timers.

    DELAY=3, sent to T   ->  rmq_sys_wheel_timer: DELAy=3, TIMER_OUT_MS, DUEMQ_DUE_MS, REAL_TOPIC=T
    due                  ->  T: DELAY=3, REAL_TOPIC=T, REAL_QID, as the level service delivers it

It runs before the hook of the levels, which redirects the other messages: levels that are not
routed, property texts that are too long or have both names, markers. The limits of timers are not
checked, so clients that send levels see no difference. If a message has a level and a time, the
level applies, as without a migration. Timer properties of a message that a consumer sends back are
removed.

Source: HookUtils.handleScheduleMessage
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from delayed_delivery import ownership
from delayed_delivery.kinds import LEVEL_KIND
from delayed_delivery.ownership import JournalEntry, Route
from delayed_delivery.ownership_projection import LevelProjection
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duemq_migration.kernels import route as kernels
from message_store.layout import Rows
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from message_store.store import MessageStore
from schedule_service.levels import LevelHistory
from schedule_service.queues import ScheduleQueues
from timer_store.names import DUE_NAMES, STALE_NAMES
from timer_store.store import TimerStore

Delays = npt.NDArray[np.int64]


class Router:
    """Put hook that redirects rows with a routed level; runs before the hook of the levels.

    Args:
        history: Level tables; `delays_ms` (levels + 1,) i8 are the delays in force.
    Attributes:
        kinds: LEVEL_KIND while a level is routed: the put path calls the hook only then.
    """

    def __init__(self, topics: TopicTable, history: LevelHistory, *, precision_ms: int) -> None:
        self._topics, self._history = topics, history
        self._numbers: Delays = np.zeros(kernels.NUMBERS, np.int64)
        self._numbers[kernels.TIMER] = topics.add(TIMER_TOPIC)
        self._numbers[kernels.SCHEDULE] = topics.add(SCHEDULE_TOPIC)
        self._numbers[kernels.HALF] = topics.add(HALF_TOPIC)
        self._numbers[kernels.PRECISION_MS] = precision_ms
        self._report: npt.NDArray[np.uint8] = np.zeros(1_024, np.uint8)
        self._one: npt.NDArray[np.uint8] = np.zeros(1, np.uint8)
        self._levels: dict[int, LevelProjection] = {}
        self._delays: Delays = np.zeros(0, np.int64)
        self._rules: Delays = np.zeros((0, 3), np.int64)
        self._noted_delays: Delays | None = None  # delays that `_delays` was computed from
        self.routed = self.kinds = 0

    @property
    def levels(self) -> Mapping[int, LevelProjection]:
        """Routed levels."""
        return self._levels

    def set_route(self, level: LevelProjection) -> None:
        """Begin or end the routing of a level's new messages, as the journal defines it."""
        if level.routed:
            self._levels[level.level] = level
        else:
            self._levels.pop(level.level, None)
        self.kinds = LEVEL_KIND if self._levels else 0
        self._noted_delays = None

    def begin(
        self,
        store: MessageStore,
        queues: ScheduleQueues,
        timers: TimerStore,
        level: int,
        rules: Mapping[str, int],
        now_ms: int,
        *,
        migration: str = "",
    ) -> JournalEntry:
        """Append a route record: later messages of the level are timers.

        Raises:
            OwnershipRefused: The store is not writable; nothing has changed.
        """
        record = Route(
            migration=migration,
            level=level,
            on=True,
            fence=queues.bounds(level)[1],
            timer_fence=timers.fetch.bounds()[1],
            rules=dict(rules),
        )
        entry = ownership.append(store, record, now_ms)
        self.set_route(LevelProjection(level=level).after(entry))
        return entry

    def __call__(self, batch: PutBatch, now_ms: int) -> None:
        """Redirect rows with a routed level to the timers; due times count from the store time."""
        if not self._levels:
            return
        delays = self._history.delays_ms
        if delays is not self._noted_delays:
            self._note(delays)
        if self._report.size < batch.count:
            self._report = np.zeros(batch.count * 2, np.uint8)
        self._numbers[kernels.NOW_MS] = now_ms
        routed, unhandled = self._route(batch, batch.rows, batch.count, self._report)
        self.routed += routed
        if unhandled:
            for index in np.flatnonzero(self._report[: batch.count] == kernels.UNHANDLED).tolist():
                self._rewrite(batch, index)

    def _route(
        self, batch: PutBatch, rows: Rows, count: int, report: npt.NDArray[np.uint8]
    ) -> tuple[int, int]:
        routed: tuple[int, int] = kernels.route(
            rows,
            count,
            batch.staging,
            self._topics.arrays.topics,
            self._delays,
            self._rules,
            self._numbers,
            report,
        )
        return routed

    def _note(self, delays: Delays) -> None:
        """Compute the delay of each level; levels above the highest have its delay."""
        self._noted_delays = delays
        self._delays = np.full(delays.size, kernels.NOT_ROUTED, np.int64)
        rules = []
        for level, projected in self._levels.items():
            if level < delays.size:
                self._delays[level] = delays[level]
                rules += [(level, self._topics.add(t), ms) for t, ms in projected.rules.items()]
        self._rules = np.array(rules, np.int64).reshape(-1, 3)

    def _rewrite(self, batch: PutBatch, position: int) -> None:
        """Remove timer properties; replace a level above the highest one by the highest."""
        level = min(int(batch.rows[position]["delay_level"]), self._delays.size - 1)
        properties = batch.properties(position)
        for name in (*DUE_NAMES, *STALE_NAMES):
            properties.pop(name, None)
        properties["DELAY"] = str(level)
        batch.set_properties(position, properties)
        routed, _ = self._route(batch, batch.rows[position : position + 1], 1, self._one)
        self.routed += routed
