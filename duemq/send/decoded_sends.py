"""Batches of in-process sends; the sends of one event loop turn are appended together.

    send() ... send() --next turn--> fill rows --> hooks, append --> responses
    append() ------------- now ---/  MustWait: create the topic, retry in a later batch

If the caller of `send` is cancelled before the turn, the message is not stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Struct

from duemq.send.ingest import STAGING_BYTES
from duemq.send.layout import ROWS_MAX
from duemq.send.put_path import PutPath
from duemq.send.responses import DecodedSend, MustWait, SendResponses
from duemq.send.send import SendProcessor
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch

log = logging.getLogger(__name__)
STAGED_BYTES_MAX: Final = 8 << 20  # staging bytes above which a batch is appended
Result = tuple[Response, DecodedSend | None, bool]
"""Response, send (None: refused), whether the response must wait for confirmation of the append."""


class Sink(Protocol):
    """Receiver of the result of a send: a future, or an `SendOutcome`."""

    def done(self) -> bool:
        """Return whether the result is not needed any longer."""
        ...

    def set_result(self, result: Result, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class SendOutcome(Struct):
    """Result of a send that was made without a future.

    Attributes:
        result: Result; None: the send must wait, for example for a new topic, and was not appended.
    """

    result: Result | None = None

    def done(self) -> bool:
        """Return False: the caller needs the result."""
        return False

    def set_result(self, result: Result, /) -> None:
        self.result = result

    def set_exception(self, error: BaseException, /) -> None:
        self.result = None


class DecodedSends:
    """Batcher of decoded send requests. Callers check access before they call it.

    Args:
        sender: Adds decoded sends to a batch.
        responses: Builds the responses.
    """

    def __init__(self, path: PutPath, sender: SendProcessor, responses: SendResponses) -> None:
        self._path, self._sender, self._responses = path, sender, responses
        self._next: list[tuple[Request, Sink]] = []
        self._is_scheduled = False
        self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)

    async def send(self, request: Request) -> Response:
        """Append the message of a send request; return the response."""
        while True:
            try:
                response, send, waits = await self._in_next_turn(request)
                break
            except MustWait as wait:
                try:
                    await wait.prepare()
                except Exception as error:
                    return self._responses.refusal(error, request)
        if is_complete(send, waits=waits):
            return response
        assert send is not None
        return await self.completed(response, send, waits=waits)

    def append(self, requests: Iterable[Request]) -> list[SendOutcome]:
        """Append the messages of send requests now; return an outcome for each request."""
        outcomes = []
        for request in requests:
            outcomes.append(SendOutcome())
            self._next.append((request, outcomes[-1]))
        self._append_next()
        return outcomes

    async def completed(self, response: Response, send: DecodedSend, *, waits: bool) -> Response:
        """Return the response after everything that it must wait for."""
        return await self._responses.completed(response, send, waits=waits)

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
        self._append_next()

    def _append_next(self) -> None:
        current, self._next = self._next, []
        filled: list[tuple[DecodedSend, Sink]] = []
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

    def _fill(self, request: Request, future: Sink) -> DecodedSend | None:
        """Add a send to the batch; on failure, set the result of `future` and return None."""
        batch = self._batch
        count, staged = batch.count, batch.staging_len
        host = getattr(request.peer, "born_host", (b"\0\0\0\0", 0))
        try:
            return self._sender.fill(request, host, batch)
        except MustWait as wait:
            batch.count, batch.staging_len = count, staged
            future.set_exception(wait)
        except Exception as error:
            batch.count, batch.staging_len = count, staged
            future.set_result((self._responses.refusal(error, request), None, False))
        return None

    def _put(self, filled: list[tuple[DecodedSend, Sink]]) -> None:
        batch = self._batch
        self._path.put(batch)
        for send, future in filled:
            response = self._responses.response(batch, send)
            waits = self._responses.waits(batch, send, response)
            if not future.done():
                future.set_result((response, send, waits))
        if batch.rows.size > ROWS_MAX or batch.staging.size > STAGED_BYTES_MAX:
            self._batch = PutBatch(ROWS_MAX, STAGING_BYTES)
        else:
            batch.clear()


def is_complete(send: DecodedSend | None, *, waits: bool) -> bool:
    """Return whether the response to a send can be sent at once.

    Args:
        send: Rows of the send; None: the send was refused.
        waits: Whether the response must wait for confirmation of the append.
    """
    return send is None or (send.before_response is None and not waits)
