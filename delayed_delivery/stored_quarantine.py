"""Quarantine of stored messages: popped ones and half messages that cannot be processed."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from delayed_delivery.quarantine import Reason, Undeliverable, put_quarantined
from delayed_delivery.records import read_damaged
from duemq_common.clock import Clock
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.batch import PutBatch

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)


class StoredQuarantine:
    """Quarantine of one service.

    Attributes:
        counts: Messages that went to quarantine since the start, by reason.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._batch = PutBatch(1, 1)
        self.counts: Counter[Reason] = Counter()

    def put(
        self, queue_place: tuple[str, int, int], group: str, reason: Reason, detail: str
    ) -> str:
        """Append the quarantine record of a message; return why the store refuses it, or "".

        Args:
            queue_place: Topic, queue and queue offset of the message.
            group: Consumer group that popped it; empty for a half message.
        """
        topic, queue_id, offset = queue_place
        units = self._store.units(topic, queue_id, offset, 1)
        if not units.size:  # retention has removed the message
            log.warning("message %d of %s/%d no longer exists", *queue_place[2:], *queue_place[:2])
            return ""
        phys_offset, size = int(units[0]["phys_offset"]), int(units[0]["size"])
        data, record = read_damaged(self._store, phys_offset, size)
        item = Undeliverable(
            reason, detail, phys_offset, 0, offset, record, data, topic=topic, group=group
        )
        refusal = put_quarantined(self._store, self._batch, item, now_ms=self._clock.now_ms())
        if refusal:
            return refusal
        self.counts[reason] += 1
        log.warning(
            "message %d of %s/%d%s went to %s: %s: %s",
            offset,
            topic,
            queue_id,
            f", popped by group {group}," if group else "",
            QUARANTINE_TOPIC,
            reason.value,
            detail,
        )
        return ""
