"""Configuration section of the level service. Source: MessageStoreConfig, BrokerConfig."""

from __future__ import annotations

from dataclasses import dataclass

from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq_common.config import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Delay levels and their delivery."""

    levels: str = option(
        DEFAULT_LEVELS,
        "messageDelayLevel",
        "Delays of levels 1, 2, ..., separated by one space; units s, m, h, d.",
        wire=True,
    )
    persist_interval_ms: int = option(
        10_000,
        "flushDelayOffsetInterval",
        "Pause between two writes of delayOffset.json.",
        minimum=100,
    )
    stats_enable: bool = option(
        True, "enableScheduleMessageStats", "Keep the lateness histogram of every level.", wire=True
    )
    async_deliver: bool = option(
        False,
        "enableScheduleAsyncDeliver",
        "Deliver the next batch of a level before the previous one is durable.",
        wire=True,
    )
    async_pending_max: int = option(
        2_000,
        "scheduleAsyncDeliverMaxPendingLimit",
        "Maximum unacknowledged deliveries of one level (asynchronous delivery).",
        unit="messages",
        minimum=1,
        maximum=1_000_000,
        wire=True,
    )
    async_resends_max: int = option(
        3,
        "scheduleAsyncDeliverMaxResendNum2Blocked",
        "Failures of a delivery after which its level starts no new ones.",
        unit="failures",
        minimum=0,
        wire=True,
    )
    version_step: int = option(
        200,
        "delayOffsetUpdateVersionStep",
        "Deliveries after which the data version of delayOffset.json is raised.",
        unit="messages",
        minimum=1,
    )
    batch_records_max: int = option(
        2_048,
        "scheduleDeliverBatchRecords",
        "Maximum messages of one delivery batch; other traffic is served after each batch.",
        unit="messages",
        minimum=1,
        maximum=65_536,
        wire=True,
        own=True,
    )
    batch_bytes_max: int = option(
        1 << 20,
        "scheduleDeliverBatchBytes",
        "Maximum bytes of one delivery batch; a larger message is delivered alone.",
        minimum=1,
        wire=True,
        own=True,
    )

    def __post_init__(self) -> None:
        parse_levels(self.levels)
