"""Revive log: writer of checkpoints and acknowledgements, which are timers of the revive topic.

The acknowledgements of one turn of the event loop are appended as one batch: a client acknowledges
many messages with one call, and has many calls in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from duemq.pop.checkpoints import Acknowledgement, Entry, PopCheckpoint
from duemq.pop.figures import PUT, REFUSED, PopFigures
from duemq.pop.merged_acks import AckKey, MergedAcks
from duemq.pop.names import revive_topic
from duemq.pop.undecided_pops import UndecidedPops
from duemq.registry.managers import Identity
from duemq.send.put_path import PutPath
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from message_store.log.batch import PutBatch
from message_store.log.copies import refusal
from message_store.log.properties import encode_properties
from message_store.replication.acknowledgement import not_confirmed

if TYPE_CHECKING:
    from message_store.store import MessageStore

STAGING_BYTES: Final = 1 << 16
STAGING_BYTES_KEPT: Final = 1 << 20  # a larger staging buffer is freed after its batch
ROWS_MAX: Final = 1_024  # per batch


class ReviveLog:
    """Writer of the revive topic.

    Args:
        put_path: Path to the log; its hooks redirect the records to the timers.
        undecided: Receives each stored checkpoint.
        figures: Counters of the records.
    """

    def __init__(
        self,
        store: MessageStore,
        put_path: PutPath,
        undecided: UndecidedPops,
        identity: Identity,
        clock: Clock,
        figures: PopFigures,
    ) -> None:
        self._undecided, self._figures = undecided, figures
        self._store, self._put_path = store, put_path
        self._identity, self._clock = identity, clock
        self._topic_index = store.topics.add(revive_topic(identity.cluster_name))
        self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)
        self._merged, self._futures = MergedAcks(), dict[AckKey, list[asyncio.Future[None]]]()

    @property
    def end(self) -> int:
        """End of the log, in bytes; every stored record begins before it."""
        return self._store.max_offset

    def put(self, entries: Sequence[Entry]) -> None:
        """Append all of the records or none.

        Raises:
            RequestError: The store refused a record; INVALID_PARAMETER: a due time is invalid.
        """
        for error in self.put_each(entries, together=(0, len(entries))).values():
            raise error

    async def acknowledge(self, revive_queue: int, record: Acknowledgement) -> None:
        """Append an acknowledgement; those of one turn of the event loop become one batch.

        Raises:
            RequestError: The store refused the record of this checkpoint.
        """
        loop = asyncio.get_running_loop()
        if not self._futures:
            loop.call_soon(self._put_turn)
        key = self._merged.add(revive_queue, record)
        stored: asyncio.Future[None] = loop.create_future()
        self._futures.setdefault(key, []).append(stored)
        await stored

    def put_merged(self, merged: MergedAcks) -> dict[AckKey, Exception]:
        """Append acknowledgements; return the errors of refused records by their key."""
        keys, entries = merged.take()
        errors: dict[AckKey, Exception] = {}
        for first in range(0, len(entries), ROWS_MAX):
            part = entries[first : first + ROWS_MAX]
            try:
                refused: Mapping[int, Exception] = self.put_each(part, together=(0, 0))
            except Exception as error:
                refused = dict.fromkeys(range(len(part)), error)
            errors |= {keys[first + row]: error for row, error in refused.items()}
        return errors

    def _put_turn(self) -> None:
        callers, self._futures = self._futures, {}
        errors = self.put_merged(self._merged)
        for key, futures in callers.items():
            for stored in futures:
                if stored.done():  # cancelled
                    continue
                if key in errors:
                    stored.set_exception(errors[key])
                else:
                    stored.set_result(None)

    def put_each(
        self,
        entries: Sequence[Entry],
        *,
        together: tuple[int, int],
        are_put_again: bool = False,
    ) -> dict[int, RequestError]:
        """Append records.

        Args:
            together: Index of the first and number of the entries that the store must accept
                together; if it refuses one, it refuses all.
            are_put_again: Whether the caller appends refused entries of `together` again, one by
                one; their first refusal is then not counted.
        Returns:
            Error of each refused record, by index in `entries`.
        """
        batch, now_ms = self._batch, self._clock.now_ms()
        batch.clear()
        for _, record in entries:
            if isinstance(record, Acknowledgement):
                record.due_ms = self._undecided.ack_due_ms(record, now_ms)
        self._add(batch, entries)
        if together[1]:
            batch.together.append(together)
        self._put_path.put(batch)
        refused = self._refused(batch)
        first, count = together if are_put_again else (0, 0)
        for row, (_, record) in enumerate(entries):
            if row not in refused:
                self._figures.on_put(record, PUT)
                if isinstance(record, PopCheckpoint):
                    self._undecided.add(record)
                else:
                    self._undecided.acknowledged(record, now_ms)
            elif not first <= row < first + count:
                self._figures.on_put(record, REFUSED)
        if batch.rows.size > ROWS_MAX or batch.staging.size > STAGING_BYTES_KEPT:
            self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)
        return refused

    def _add(self, batch: PutBatch, entries: Sequence[Entry]) -> None:
        """Add the record of each entry to a batch."""
        now_ms, host = self._clock.now_ms(), self._identity.host
        for queue_id, record in entries:
            batch.add(
                topic_index=self._topic_index,
                queue_id=queue_id,
                body=record.body(),
                properties=encode_properties(record.properties()),
                born_ms=now_ms,
                born_host=host,
                store_host=host,
            )

    @staticmethod
    def _refused(batch: PutBatch) -> dict[int, RequestError]:
        """Return the errors of the records that the store refused, by row."""
        refused: dict[int, RequestError] = {}
        statuses = batch.filled["status"]
        if not statuses.any():
            return refused
        for row in np.flatnonzero(statuses).tolist():
            if (fault := refusal(batch, row)) is not None:
                illegal = int(statuses[row]) == ResponseCode.MESSAGE_ILLEGAL
                code = ResponseCode.INVALID_PARAMETER if illegal else ResponseCode.SYSTEM_ERROR
                refused[row] = RequestError(
                    code, f"the record of the invisible time cannot be stored: {fault}"
                )
        return refused

    async def confirm(self, statement: str) -> None:
        """Wait until the disk and the replicas have all stored records, as far as configured.

        Args:
            statement: Clause for the error, such as "the message was acknowledged".
        Raises:
            RequestError: The wait timed out; the records are in the log.
        """
        if missing := await self._store.wait_confirmed(self._store.max_offset):
            raise not_confirmed(statement, missing)
