"""Sends of callers in this process: those of one turn of the event loop are one batch.

    send() ... send() --next turn--> fill the rows --hooks, append--> responses
                      NotYet: its topic is created first, then it is in a later batch

A send whose caller was cancelled before its turn is not stored.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from delivery.plugin import Request, Response
from duemq.send.answers import Answering, PlainSend
from duemq.send.ingest import ROWS_MAX, STAGING_BYTES, NotYet, PlainSender
from duemq.send.put_path import PutPath
from message_store.log.batch import PutBatch

log = logging.getLogger(__name__)
STAGED_BYTES_MAX: Final = 8 << 20  # of one batch
Result = tuple[Response, PlainSend | None, bool]
"""A response, the send that it answers, and whether it must wait until that is confirmed."""


class DecodedSends:
    """Appends decoded sends; access must have been checked.

    Args:
        sender: Fills the rows of a batch.
        answering: Builds the responses.
    """

    def __init__(self, path: PutPath, sender: PlainSender, answering: Answering) -> None:
        self._path, self._sender, self._answering = path, sender, answering
        self._next: list[tuple[Request, asyncio.Future[Result]]] = []
        self._is_scheduled = False
        self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)

    async def send(self, request: Request) -> Response:
        """Append the message of a send request; return the response."""
        while True:
            try:
                response, send, waits = await self._in_next_turn(request)
                break
            except NotYet as wait:
                try:
                    await wait.prepare()
                except Exception as error:
                    return self._answering.refusal(error, request)
        if send is None or (send.before_answer is None and not waits):
            return response
        return await self._answering.completed(response, send, waits=waits)

    def _in_next_turn(self, request: Request) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._next.append((request, future))
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._run_turn)
        return future

    def _run_turn(self) -> None:
        self._is_scheduled = False
        current, self._next = self._next, []
        filled: list[tuple[PlainSend, asyncio.Future[Result]]] = []
        for request, future in current:
            if future.done():  # cancelled
                continue
            send = self._fill(request, future)
            if send is not None:
                filled.append((send, future))
            if self._batch.count >= ROWS_MAX or self._batch.staging_len > STAGED_BYTES_MAX:
                self._put(filled)
                filled = []
        if filled:
            self._put(filled)

    def _fill(self, request: Request, future: asyncio.Future[Result]) -> PlainSend | None:
        """Add a send to the batch; one that cannot be added gets its response."""
        batch = self._batch
        count, staged = batch.count, batch.staging_len
        host = getattr(request.peer, "born_host", (b"\0\0\0\0", 0))
        try:
            return self._sender.fill(request, host, batch)
        except NotYet as wait:
            batch.count, batch.staging_len = count, staged
            future.set_exception(wait)
        except Exception as error:
            batch.count, batch.staging_len = count, staged
            future.set_result((self._answering.refusal(error, request), None, False))
        return None

    def _put(self, filled: list[tuple[PlainSend, asyncio.Future[Result]]]) -> None:
        batch = self._batch
        self._path.put(batch)
        for send, future in filled:
            response = self._answering.response(batch, send)
            waits = self._answering.waits(batch, send, response)
            if not future.done():
                future.set_result((response, send, waits))
        if batch.rows.size > ROWS_MAX or batch.staging.size > STAGED_BYTES_MAX:
            self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)
        else:
            batch.clear()
