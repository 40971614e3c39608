"""Revive log: puts checkpoints and acknowledgements, which are timers of the revive topic.

Acknowledgements of one turn of the event loop are one batch: a client names many messages in one
call, and has many calls in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from duemq.messages.copies import not_confirmed, refusal
from duemq.net.codes import ResponseCode
from duemq.pop.checkpoints import Acknowledgement, Checkpoint
from duemq.pop.figures import PUT, REFUSED, PopFigures
from duemq.pop.names import revive_topic
from duemq.pop.undecided_pops import UndecidedPops
from duemq.ports import Identity
from duemq.send.put_path import PutPath
from message_store.clock import Clock
from message_store.errors import RequestError
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties

if TYPE_CHECKING:
    from message_store.store import MessageStore

STAGING_BYTES: Final = 1 << 16
ROWS_MAX: Final = 1_024  # of one batch
Entry = tuple[int, Checkpoint | Acknowledgement]
"""Revive queue, and the record to put there."""


class ReviveLog:
    """Writer of the revive topic.

    Args:
        put_path: Its hooks redirect the records to the timers.
        figures: Count what is put.
        undecided: Takes each checkpoint.
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
        self._next: list[tuple[Entry, asyncio.Future[None]]] = []

    @property
    def end(self) -> int:
        """Log offset behind everything that was put."""
        return self._store.max_offset

    def put(self, entries: Sequence[Entry]) -> None:
        """Append records: all of them, or none.

        Raises:
            RequestError: They were refused; with INVALID_PARAMETER if their time is not possible.
        """
        for error in self.put_each(entries, together=(0, len(entries))).values():
            raise error

    async def put_in_turn(self, entry: Entry) -> None:
        """Append a record, with those of other callers in this turn of the event loop.

        Raises:
            RequestError: It was refused; the others are not.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._next.append((entry, future))
        if len(self._next) == 1:
            loop.call_soon(self._run_turn)
        await future

    def _run_turn(self) -> None:
        current, self._next = self._next, []
        for first in range(0, len(current), ROWS_MAX):
            self._put_waiting(current[first : first + ROWS_MAX])

    def _put_waiting(self, part: Sequence[tuple[Entry, asyncio.Future[None]]]) -> None:
        errors: Mapping[int, Exception]
        try:
            errors = self.put_each([entry for entry, _ in part], together=(0, 0))
        except Exception as error:
            errors = dict.fromkeys(range(len(part)), error)
        for index, (_, future) in enumerate(part):
            if future.done():  # cancelled
                continue
            if index in errors:
                future.set_exception(errors[index])
            else:
                future.set_result(None)

    def put_each(
        self, entries: Sequence[Entry], *, together: tuple[int, int]
    ) -> dict[int, RequestError]:
        """Append records; return why some of them were refused, by their index.

        Args:
            together: Index and number of entries that are stored all, or none.
        """
        batch = PutBatch(len(entries), STAGING_BYTES)
        now_ms = self._clock.now_ms()
        for queue_id, record in entries:
            batch.add(
                topic_index=self._topic_index,
                queue_id=queue_id,
                body=record.body(),
                properties=encode_properties(record.properties()),
                born_ms=now_ms,
                born_host=self._identity.host,
                store_host=self._identity.host,
            )
        if together[1]:
            batch.together.append(together)
        self._put_path.put(batch)
        faults = [refusal(batch, row) for row in range(batch.count)]
        for (_, record), fault in zip(entries, faults, strict=True):
            self._figures.note_put(record, PUT if fault is None else REFUSED)
        refused = {}
        for row, fault in enumerate(faults):
            record = entries[row][1]
            if fault is None:
                if isinstance(record, Checkpoint):
                    self._undecided.add(record)
                continue
            illegal = int(batch.rows[row]["status"]) == ResponseCode.MESSAGE_ILLEGAL
            code = ResponseCode.INVALID_PARAMETER if illegal else ResponseCode.SYSTEM_ERROR
            refused[row] = RequestError(code, f"the invisible time cannot be kept: {fault}")
        return refused

    async def confirm(self, what: str) -> None:
        """Wait until disk and replicas have everything that was put, as far as they must.

        Raises:
            RequestError: Not in time; the records are in the log.
        """
        if missing := await self._store.wait_confirmed(self._store.max_offset):
            raise not_confirmed(what, missing)
