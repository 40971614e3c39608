"""Configuration section of the timer store. Source: MessageStoreConfig (5.3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from message_store.config import INT_MAX, option
from timer_store.layout import DUE_MS_MAX, SLOTS, TIMER_BLANK, TIMER_UNIT

PRECISIONS_MS = (1_000, 500, 200, 100)  # what timerPrecisionMs is rounded down to, at least 100
BLANK_SLOTS = 60  # TimerMessageStore.TIMER_BLANK_SLOTS
ROLL_BY_INDEX, ROLL_BY_MESSAGE = "index", "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """How long timers may wait, how they are kept, and how what is due is delivered."""

    enabled: bool = option(
        True,
        key="timerWheelEnable",
        doc="Hold messages that ask for a time of their own; without it they are refused.",
    )
    precision_ms: int = option(
        1_000,
        key="timerPrecisionMs",
        doc="Width of a slot on the disk: 1000, 500, 200 or 100, others are rounded down. "
        "Messages come at their own millisecond whatever it is.",
        unit="ms",
        minimum=0,
    )
    roll_window_slots: int = option(
        172_800,
        key="timerRollWindowSlot",
        doc="Timers due later than so many slots from now are looked at again on the way.",
        unit="slots",
    )
    max_delay_s: int = option(
        259_200,
        key="timerMaxDelaySec",
        doc="The longest delay that is accepted.",
        unit="s",
        minimum=0,
        maximum=DUE_MS_MAX // 1_000,
        live=True,
        wire=True,
    )
    flush_interval_ms: int = option(
        1_000,
        key="timerFlushIntervalMs",
        doc="Pause between two checkpoints of the timer store.",
        unit="ms",
        minimum=100,
    )
    log_file_bytes: int = option(
        104_857_600,
        key="mappedFileSizeTimerLog",
        doc="Size of a timer log file.",
        unit="bytes",
        minimum=TIMER_UNIT.itemsize + TIMER_BLANK.itemsize,
    )
    stop_enqueue: bool = option(
        False,
        key="timerStopEnqueue",
        doc="Leave new timers in their queue for now; they are held, not delivered.",
        live=True,
        wire=True,
    )
    stop_dequeue: bool = option(
        False,
        key="timerStopDequeue",
        doc="Deliver no timers for now.",
        live=True,
        wire=True,
    )
    flow_control: bool = option(
        True,
        key="timerFlowControlEnabled",
        doc="Whether timerCongestNumEachSlot and timerTopicQuota refuse messages.",
        own=True,
        live=True,
        wire=True,
    )
    slot_timers_max: int = option(
        INT_MAX,
        key="timerCongestNumEachSlot",
        doc="Timers that may wait in one slot; one more is refused.",
        unit="messages",
        minimum=0,
        live=True,
        wire=True,
    )
    topic_quota: int = option(
        0,
        key="timerTopicQuota",
        doc="Timers of one topic that may wait, 0: any number.",
        unit="messages",
        minimum=0,
        own=True,
        live=True,
        wire=True,
    )
    spread_ms: int = option(
        0,
        key="timerSpreadMs",
        doc="Spread due times over so much, always later, by the message's id; 0: not.",
        unit="ms",
        minimum=0,
        maximum=86_400_000,
        own=True,
        live=True,
        wire=True,
    )
    roll_mode: str = option(
        ROLL_BY_INDEX,
        key="timerRollMode",
        doc="What is written again on the way of a long timer: its index unit, or the message.",
        choices=(ROLL_BY_INDEX, ROLL_BY_MESSAGE),
        own=True,
        live=True,
        wire=True,
    )
    compact_percent: int = option(
        50,
        key="timerCompactRatio",
        doc="When the disk fills up, messages that wait are copied out of old commit log files of "
        "which at most so much waits, so that the files can go; 0: never.",
        unit="%",
        minimum=0,
        maximum=90,
        own=True,
        live=True,
        wire=True,
    )
    stage_lead_ms: int = option(
        1_000,
        key="timerStageLeadMs",
        doc="How long before it begins a slot is loaded.",
        unit="ms",
        minimum=0,
        maximum=60_000,
        own=True,
        live=True,
        wire=True,
    )
    stage_records_max: int = option(
        1 << 20,
        key="timerStageRecords",
        doc="Timers that are loaded at a time; more of the same second are loaded in parts.",
        unit="messages",
        minimum=1_024,
        own=True,
    )
    batch_records_max: int = option(
        4_096,
        key="timerDeliverBatchRecords",
        doc="Messages delivered in one piece, before other traffic has its turn.",
        unit="messages",
        minimum=1,
        maximum=65_536,
        own=True,
        live=True,
        wire=True,
    )
    batch_bytes_max: int = option(
        2 << 20,
        key="timerDeliverBatchBytes",
        doc="Bytes delivered in one piece; a larger message goes alone.",
        unit="bytes",
        minimum=1,
        own=True,
        live=True,
        wire=True,
    )

    def __post_init__(self) -> None:
        snapped = next((p for p in PRECISIONS_MS if self.precision_ms >= p), PRECISIONS_MS[-1])
        object.__setattr__(self, "precision_ms", snapped)
        if not 2 <= self.roll_window_slots <= SLOTS - BLANK_SLOTS:
            object.__setattr__(self, "roll_window_slots", SLOTS - BLANK_SLOTS)

    @property
    def window_ms(self) -> int:
        """How far ahead a unit may lie."""
        return self.roll_window_slots * self.precision_ms

    @property
    def max_delay_ms(self) -> int:
        """The longest delay that is accepted."""
        return self.max_delay_s * 1_000
