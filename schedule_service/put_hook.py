"""Put hook: redirects messages with a delay level to the schedule topic.

The hook works on columns. Single rows are rewritten only if their property text changes: a level
above the highest (DELAY is rewritten), timer properties together with a level (the level applies),
and properties that a broker added before a consumer sent the message back. A delivered message is
therefore the same whether its level is migrated or not.

Source: HookUtils.handleScheduleMessage
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delayed_delivery.kinds import LEVEL_KIND
from duemq_common.codes import ResponseCode
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from schedule_service import kernels
from schedule_service.levels import LevelHistory

if TYPE_CHECKING:
    from message_store.store import MessageStore
    from schedule_service.level_tables import LevelTables

TIMER_PROPERTIES = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
STALE_PROPERTIES = (
    *TIMER_PROPERTIES,
    "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "DUEMQ_DUE_MS",
    "REAL_TOPIC",
    "REAL_QID",
)


class LevelHook:
    """Put hook that redirects rows with a level.

    Args:
        tables: Level tables and the store whose log must have their record before the message.
    """

    kinds = LEVEL_KIND

    def __init__(
        self,
        topics: TopicTable,
        levels: LevelHistory,
        tables: tuple[LevelTables, MessageStore] | None = None,
    ) -> None:
        self._levels, self._tables = levels, tables
        self._schedule = topics.add(SCHEDULE_TOPIC)
        self._half = topics.add(HALF_TOPIC)
        self._report: npt.NDArray[np.uint8] = np.zeros(1024, np.uint8)

    def __call__(self, batch: PutBatch, now_ms: int) -> None:
        """Redirect rows with a level; refuse those whose DELAY is not a number with code 13.

        Half messages are not redirected: their delay counts from the commit.
        """
        count = batch.count
        if self._tables is not None and self._tables[0].needs_record:
            self._tables[0].append_due(self._tables[1])
        if self._report.size < count:
            self._report = np.zeros(count * 2, np.uint8)
        unhandled = kernels.redirect(
            batch.rows, count, self._schedule, self._half, self._levels.delays_ms, self._report
        )
        if unhandled:
            end = 0
            for index in np.flatnonzero(self._report[:count]).tolist():
                if index < end:
                    continue
                if self._report[index] == kernels.ILLEGAL:
                    self._refuse(batch, index)
                    end = batch.group_end(index)
                else:
                    self._rewrite(batch, index)

    def _refuse(self, batch: PutBatch, position: int) -> None:
        value = batch.properties(position).get("DELAY", "")
        remark = (
            f"the delay level {value[:40]!r} (property DELAY) is not a whole number of 32 bits; "
            f"levels are 1 to {self._levels.delays_ms.size - 1}, 0 is no delay"
        )
        batch.refuse(position, ResponseCode.MESSAGE_ILLEGAL, remark)

    def _rewrite(self, batch: PutBatch, position: int) -> None:
        properties = batch.properties(position)
        for name in STALE_PROPERTIES:
            properties.pop(name, None)
        properties["DELAY"] = str(int(batch.rows[position]["delay_level"]))
        batch.set_properties(position, properties)
