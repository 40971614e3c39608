"""Put path: the stages of a batch from filled rows to acknowledgement.

1. put hooks, in the order that plugins declare (`duemq.broker.plugins.in_declared_order`):
       migration           routes messages of migrated levels to the timers
       schedule_service    redirects messages with a level
       timer_store         redirects messages with a delivery time
       recurring_schedules turns messages with a schedule into its record
              (other plugins)     before or after the plugins that they name
          without a timer store, `refuse_timers` runs instead (`duemq.broker.assembly`)
       2. `refuse_together`       accepts or refuses a client's batch as a whole (`PutBatch`)
3. `MessageStore.put`      encodes, appends, writes queue units, calls dispatchers
4. `wait_confirmed`        waits for the disk with `flushDiskType=SYNC_FLUSH` and for replicas
                           with `brokerRole=SYNC_MASTER`
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from message_store import layout
from message_store.hooks import PutHook
from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)


class PutPath:
    """Path of a batch through the put hooks into the message store.

    Args:
        hooks: Put hooks in call order; those of plugins are added when the plugins run.
    """

    def __init__(self, store: MessageStore, hooks: Sequence[PutHook], clock: Clock) -> None:
        self.store = store
        self._hooks = hooks
        self._clock = clock

    def put(self, batch: PutBatch) -> None:
        """Append the rows whose status is 0, and write the results to the rows; never raise.

        If a hook or the store raises, rows without a result are refused with SYSTEM_ERROR.
        """
        try:
            self.run_hooks(batch)
            if batch.together:
                batch.refuse_together()
            self.store.put(batch)
        except Exception as error:
            log.exception("appending a batch of %d messages failed", batch.count)
            self._refuse_without_result(batch, f"{type(error).__name__}: {error}")

    def run_hooks(self, batch: PutBatch) -> None:
        """Run the put hooks on a batch; a hook refuses a row by its status.

        No hook runs if the store refuses all messages, as on a replica.
        """
        if self.store.refusal:
            return
        now_ms = self._clock.now_ms()
        for hook in self._hooks:
            kinds = getattr(hook, "kinds", None)
            if kinds is None or batch.kinds & kinds:
                hook(batch, now_ms)

    @staticmethod
    def _refuse_without_result(batch: PutBatch, reason: str) -> None:
        for index in range(batch.count):
            row = batch.rows[index]
            if row["status"] == 0 and row["phys_offset"] < 0:
                batch.refuse(index, ResponseCode.SYSTEM_ERROR, reason)

    async def put_confirmed(self, batch: PutBatch) -> Missing | None:
        """Append a batch; wait for disk and replicas unless every message has WAIT=false.

        Returns:
            Missing confirmation if messages were stored and not confirmed in time, else None.
        """
        self.put(batch)
        rows = batch.filled
        waits = (rows["status"] == 0) & (rows["prop_flags"] & layout.PROP_WAIT_FALSE == 0)
        if not waits.any():
            return None
        missing = await self.store.wait_confirmed(self.store.max_offset)
        if missing:
            log.warning("a batch of %d messages was stored, but %s", batch.count, missing.text)
        return missing
