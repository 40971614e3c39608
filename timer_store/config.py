"""Configuration section of the timer store. Source: MessageStoreConfig (5.3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from duemq_common.config import INT_MAX, option
from timer_store.layout import DUE_MS_MAX, SLOTS, TIMER_BLANK, TIMER_UNIT

PRECISIONS_MS = (1_000, 500, 200, 100)  # timerPrecisionMs is rounded down to one of these
BLANK_SLOTS = 60  # TimerMessageStore.TIMER_BLANK_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """Limits, storage and delivery of timers."""

    enabled: bool = option(
        True,
        "timerWheelEnable",
        "Accept messages with a delivery time; false: they are refused.",
    )
    precision_ms: int = option(
        1_000,
        "timerPrecisionMs",
        "Width of a slot on disk: 1000, 500, 200 or 100; other values are rounded down. Messages "
        "are delivered at their own millisecond in any case.",
        minimum=0,
    )
    roll_window_slots: int = option(
        172_800,
        "timerRollWindowSlot",
        "Roll window in slots: a timer due later is rolled until it is due within the window.",
    )
    max_delay_s: int = option(
        259_200,
        "timerMaxDelaySec",
        "Maximum delay that is accepted.",
        minimum=0,
        maximum=DUE_MS_MAX // 1_000,
        wire=True,
    )
    flush_interval_ms: int = option(
        1_000,
        "timerFlushIntervalMs",
        "Pause between two checkpoints of the timer store.",
        minimum=100,
    )
    log_file_bytes: int = option(
        104_857_600,
        "mappedFileSizeTimerLog",
        "Size of a timer log file.",
        minimum=TIMER_UNIT.itemsize + TIMER_BLANK.itemsize,
    )
    stop_enqueue: bool = option(
        False,
        "timerStopEnqueue",
        "Pause enqueueing: new timers stay in their queue and are not delivered.",
        wire=True,
    )
    stop_dequeue: bool = option(
        False, "timerStopDequeue", "Pause the delivery of timers.", wire=True
    )
    flow_control: bool = option(
        True,
        "timerFlowControlEnabled",
        "Refuse messages above timerCongestNumEachSlot and timerTopicQuota.",
        wire=True,
        own=True,
    )
    slot_timers_max: int = option(
        INT_MAX,
        "timerCongestNumEachSlot",
        "Maximum pending timers of one slot; a further timer is refused.",
        unit="messages",
        minimum=0,
        wire=True,
    )
    topic_quota: int = option(
        0,
        "timerTopicQuota",
        "Maximum pending timers of one topic; 0: unlimited.",
        unit="messages",
        minimum=0,
        wire=True,
        own=True,
    )
    spread_ms: int = option(
        0,
        "timerSpreadMs",
        "Interval over which due times are spread, always later, by the message's id; 0: none.",
        minimum=0,
        maximum=86_400_000,
        wire=True,
        own=True,
    )
    compact_percent: int = option(
        50,
        "timerCompactRatio",
        "Maximum share of pending messages in old commit log files out of which timers are copied "
        "when the disk fills up, so that the files can be deleted; 0: never.",
        minimum=0,
        maximum=90,
        wire=True,
        own=True,
    )
    stage_lead_ms: int = option(
        1_000,
        "timerStageLeadMs",
        "Time before the begin of a slot at which it is loaded.",
        minimum=0,
        maximum=60_000,
        wire=True,
        own=True,
    )
    stage_records_max: int = option(
        1 << 20,
        "timerStageRecords",
        "Maximum timers loaded at a time; more timers of one second are loaded in parts.",
        unit="messages",
        minimum=1_024,
        own=True,
    )
    batch_records_max: int = option(
        4_096,
        "timerDeliverBatchRecords",
        "Maximum messages of one delivery batch; other traffic is served after each batch.",
        unit="messages",
        minimum=1,
        maximum=65_536,
        wire=True,
        own=True,
    )
    batch_bytes_max: int = option(
        2 << 20,
        "timerDeliverBatchBytes",
        "Maximum bytes of one delivery batch; a larger message is delivered alone.",
        minimum=1,
        wire=True,
        own=True,
    )

    def __post_init__(self) -> None:
        snapped = next((p for p in PRECISIONS_MS if self.precision_ms >= p), PRECISIONS_MS[-1])
        object.__setattr__(self, "precision_ms", snapped)
        if not 2 <= self.roll_window_slots <= SLOTS - BLANK_SLOTS:
            object.__setattr__(self, "roll_window_slots", SLOTS - BLANK_SLOTS)

    @property
    def window_ms(self) -> int:
        """Longest time from now to the slot of a unit."""
        return self.roll_window_slots * self.precision_ms

    @property
    def max_delay_text(self) -> str:
        """The limit for an error: `259200000ms (3 days, timerMaxDelaySec)`."""
        return f"{self.max_delay_ms}ms ({self.max_delay_s / 86_400:.3g} days, timerMaxDelaySec)"

    @property
    def max_delay_ms(self) -> int:
        """The longest delay that is accepted."""
        return self.max_delay_s * 1_000
