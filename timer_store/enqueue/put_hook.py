"""Put hook: redirects messages with timer properties to the timer topic.

The kernel handles nearly all rows. Python handles rows that are refused, rows whose property text
changes (properties of an earlier delivery are removed), and rows that a client sent to the timer
topic itself. Source: HookUtils.handleScheduleMessage, TimerMessageStore.isReject
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from delayed_delivery.kinds import TIMER_KIND
from duemq_common.codes import ResponseCode
from duemq_common.config import INT_MAX
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.kernels.encode import PROPERTY_BYTES_MAX
from message_store.layout import PROP_TIMER_DEL
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import QUEUES_MAX, TopicTable
from timer_store.config import TimerConfig
from timer_store.enqueue.due_time import due_ms_of, number_of
from timer_store.enqueue.flow_control import full_slot_refusal, over_limit
from timer_store.kernels import enqueue as kernels
from timer_store.layout import Offsets, Rows
from timer_store.names import DUE_NAMES, STALE_NAMES

SHOWN_CHARACTERS = 40


class TimerHook:
    """Put hook that redirects rows with timer properties; runs after the hook of the levels.

    Args:
        slot_count_of: Returns the number of pending timers in the slot that covers a time in ms.
        pending_of: Returns the number of pending timers of a topic index, for timerTopicQuota.
    """

    kinds = TIMER_KIND

    def __init__(
        self,
        topics: TopicTable,
        config: TimerConfig,
        slot_count_of: Callable[[int], int],
        *,
        pending_of: Callable[[int], int] | None = None,
    ) -> None:
        self._topics = topics
        self._slot_count_of, self._pending_of = slot_count_of, pending_of
        self._numbers: Offsets = np.zeros(kernels.NUMBERS, np.int64)
        self._numbers[kernels.TIMER] = topics.add(TIMER_TOPIC)
        self._numbers[kernels.SCHEDULE] = topics.add(SCHEDULE_TOPIC)
        self._numbers[kernels.HALF] = topics.add(HALF_TOPIC)
        self._numbers[kernels.PRECISION_MS] = config.precision_ms
        self._report: npt.NDArray[np.uint8] = np.zeros(1_024, np.uint8)
        self._one: npt.NDArray[np.uint8] = np.zeros(1, np.uint8)
        self.reconfigure(config)

    def reconfigure(self, config: TimerConfig) -> None:
        """Apply changed limits; the precision is fixed while the store is open."""
        self._config = config
        self._numbers[kernels.MAX_DELAY_MS] = config.max_delay_ms
        self._numbers[kernels.SPREAD_MS] = config.spread_ms
        limited = config.slot_timers_max < INT_MAX or config.topic_quota > 0
        self._limited = config.flow_control and limited

    def __call__(self, batch: PutBatch, now_ms: int) -> None:
        """Redirect rows that are not due yet; refuse invalid ones.

        A row that is already due stays in its topic. Refusals have code 13, or 1 by flow control.
        """
        if self._report.size < batch.count:
            self._report = np.zeros(batch.count * 2, np.uint8)
        self._numbers[kernels.NOW_MS] = now_ms
        redirected, unhandled = self._redirect(batch, batch.rows, batch.count, self._report)
        if unhandled:
            end = 0
            for index in np.flatnonzero(self._report[: batch.count] > kernels.REDIRECTED).tolist():
                if index >= end:
                    self._report[index] = self._handle_row(
                        batch, index, int(self._report[index]), now_ms
                    )
                    end = batch.group_end(index) if batch.rows[index]["status"] else 0
        if self._limited and (redirected or unhandled):
            self._limit(batch)

    def _redirect(
        self, batch: PutBatch, rows: Rows, count: int, report: npt.NDArray[np.uint8]
    ) -> tuple[int, int]:
        arrays = self._topics.arrays
        counts: tuple[int, int] = kernels.redirect(
            rows, count, batch.staging, arrays.topics, arrays.names, self._numbers, report
        )
        return counts

    # -- rows that need more than columns -------------------------------------------------------

    def _handle_row(self, batch: PutBatch, position: int, report: int, now_ms: int) -> int:
        """Handle one row; return its report."""
        if report == kernels.STALE:
            properties = batch.properties(position)
            for name in STALE_NAMES:
                properties.pop(name, None)
            batch.set_properties(position, properties)
            self._redirect(batch, batch.rows[position : position + 1], 1, self._one)
            report = int(self._one[0])
            assert report != kernels.STALE
        if report > kernels.REDIRECTED:
            remark = self._refusal(batch, position, report, now_ms)
            if remark:
                batch.refuse(position, ResponseCode.MESSAGE_ILLEGAL, remark)
        return report

    def _refusal(self, batch: PutBatch, position: int, report: int, now_ms: int) -> str:
        """Return the reason for which a row is refused, empty if it is valid."""
        if report == kernels.DIRECT:
            return self._direct_fault(batch, position, now_ms)
        properties = batch.properties(position)
        given = ", ".join(f"{name}={properties[name]}" for name in DUE_NAMES if name in properties)
        given, limit = given[: 3 * SHOWN_CHARACTERS], self._config.max_delay_text
        if report == kernels.ILLEGAL:
            return (
                f"timer message illegal: {given} is not a whole number of at most 18 digits; "
                f"the max delay is {limit}"
            )
        if report == kernels.MARKER_LATE:
            return (
                f"timer message illegal: {given} is in the past, the time is {now_ms}, so there "
                f"is no message to cancel; the max delay is {limit}"
            )
        if report == kernels.TOO_FAR:
            return (
                f"timer message illegal: {given} is further away than the max delay {limit} "
                f"from {now_ms}"
            )
        return (
            "timer message illegal: its properties leave no room for the "
            f"{kernels.GROWTH_BYTES} bytes that a delivery adds; {PROPERTY_BYTES_MAX} can be stored"
        )

    def _direct_fault(self, batch: PutBatch, position: int, now_ms: int) -> str:
        """Return the fault of a message that a client sent into the timer topic, or empty."""
        properties = batch.properties(position)
        due_ms = due_ms_of(properties, now_ms, int(self._numbers[kernels.PRECISION_MS]))
        hint = f"send to your topic with TIMER_DELIVER_MS, not to {TIMER_TOPIC}"
        if due_ms is None:
            return f"TIMER_OUT_MS is missing or invalid: {hint}"
        if due_ms - now_ms > self._config.max_delay_ms:
            return f"it is due at {due_ms}, the max delay is {self._config.max_delay_text}: {hint}"
        if "DUEMQ_DUE_MS" in properties and ("DELAY" in properties or "DELAy" in properties):
            return f"a level together with DUEMQ_DUE_MS is reserved for the broker: {hint}"
        name = properties.get("REAL_TOPIC", "")
        index = self._topics.find(name)
        closed = index >= 0 and bool(self._topics.arrays.topics[index]["closed"])
        if index < 0 or closed or name in (TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC):
            return f"REAL_TOPIC {name[:SHOWN_CHARACTERS]!r} cannot be delivered to: {hint}"
        queue_id = number_of(properties.get("REAL_QID"))
        if queue_id is None or not 0 <= queue_id < QUEUES_MAX:
            return f"REAL_QID is missing or invalid: {hint}"
        if int(batch.rows[position]["prop_len"]) + kernels.GROWTH_BYTES > PROPERTY_BYTES_MAX:
            return "its properties leave no room for the properties that a delivery adds"
        return ""

    # -- flow control ---------------------------------------------------------------------------

    def _limit(self, batch: PutBatch) -> None:
        """Refuse timers beyond the limit of their slot or topic."""
        limit, quota = self._config.slot_timers_max, self._config.topic_quota
        rows = batch.filled
        redirected = np.flatnonzero(
            (self._report[: batch.count] == kernels.REDIRECTED)
            & (rows["status"] == 0)
            & (rows["prop_flags"] & PROP_TIMER_DEL == 0)
        )
        if limit < INT_MAX:
            for position, slot_ms, count in over_limit(
                rows["out_ms"][redirected], self._slot_count_of, limit
            ):
                batch.refuse(
                    int(redirected[position]),
                    ResponseCode.SYSTEM_ERROR,
                    full_slot_refusal(slot_ms, count, limit),
                )
        if quota and self._pending_of is not None:
            topics = rows["real_topic_index"][redirected]
            for position, index, count in over_limit(topics, self._pending_of, quota):
                name = self._topics.name(index)
                remark = f"{count} timers of topic {name} are pending, timerTopicQuota is {quota}"
                refusal = f"timer message is under flow control: {remark}"
                batch.refuse(int(redirected[position]), ResponseCode.SYSTEM_ERROR, refusal)
