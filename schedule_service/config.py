"""Configuration section of the level service. Source: MessageStoreConfig, BrokerConfig."""

from __future__ import annotations

from dataclasses import dataclass

from message_store.config import option
from schedule_service.levels import parse_levels

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Delay levels and how what is due is delivered."""

    levels: str = option(
        DEFAULT_LEVELS,
        key="messageDelayLevel",
        doc="Delays of levels 1, 2, ..., separated by one space; units s, m, h, d.",
        live=True,
        wire=True,
    )
    persist_interval_ms: int = option(
        10_000,
        key="flushDelayOffsetInterval",
        doc="Pause between two writes of delayOffset.json.",
        unit="ms",
        minimum=100,
    )
    stats_enable: bool = option(
        True,
        key="enableScheduleMessageStats",
        doc="Keep the lateness histogram of every level.",
        live=True,
        wire=True,
    )
    async_deliver: bool = option(
        False,
        key="enableScheduleAsyncDeliver",
        doc="Do not wait for a delivery to be durable before the next one of its level.",
        live=True,
        wire=True,
    )
    async_pending_max: int = option(
        2_000,
        key="scheduleAsyncDeliverMaxPendingLimit",
        doc="Deliveries of one level that may be unacknowledged (asynchronous delivery).",
        unit="messages",
        minimum=1,
        maximum=1_000_000,
        live=True,
        wire=True,
    )
    async_resends_max: int = option(
        3,
        key="scheduleAsyncDeliverMaxResendNum2Blocked",
        doc="Failures of a delivery after which its level takes no new ones.",
        unit="failures",
        minimum=0,
        live=True,
        wire=True,
    )
    version_step: int = option(
        200,
        key="delayOffsetUpdateVersionStep",
        doc="Deliveries after which the data version of delayOffset.json is raised.",
        unit="messages",
        minimum=1,
    )
    batch_records_max: int = option(
        2_048,
        key="scheduleDeliverBatchRecords",
        doc="Messages delivered in one piece, before other traffic has its turn.",
        unit="messages",
        minimum=1,
        maximum=65_536,
        own=True,
        live=True,
        wire=True,
    )
    batch_bytes_max: int = option(
        1 << 20,
        key="scheduleDeliverBatchBytes",
        doc="Bytes delivered in one piece; a larger message goes alone.",
        unit="bytes",
        minimum=1,
        own=True,
        live=True,
        wire=True,
    )

    def __post_init__(self) -> None:
        parse_levels(self.levels)
