"""Put hook that refuses messages with timer properties if no plugin stores timers.

Without it, the message would be stored in its topic and delivered early, as Apache 4.9.x does.
Apache 5.x refuses it with `timerWheelEnable=false` (HookUtils.handleScheduleMessage).
"""

from __future__ import annotations

import numpy as np

from duemq_common.codes import ResponseCode
from message_store.layout import PROP_TIMER_OUT, TIMER_NONE
from message_store.log.batch import PutBatch

REMARK = (
    "the message has a delivery time (TIMER_DELIVER_MS, TIMER_DELAY_MS or TIMER_DELAY_SEC), but "
    "this broker has no timer store: timerWheelEnable is false. Use a delay level."
)


def refuse_timers(batch: PutBatch, now_ms: int) -> None:
    """Refuse every message with timer properties; a put hook that runs after those of plugins."""
    rows = batch.filled
    if not rows["timer_kind"].any():
        return
    requests_timer = (rows["timer_kind"] != TIMER_NONE) & (rows["prop_flags"] & PROP_TIMER_OUT == 0)
    for index in np.flatnonzero(requests_timer & (rows["status"] == 0)).tolist():
        batch.refuse(index, ResponseCode.SYSTEM_ERROR, REMARK)
