"""Request dispatcher: table of handlers by request code, for the broker and the name server.

    request --> known code --> access --> size, required fields --> handler --> response

The dispatcher does no I/O. `begin` takes a decoded request and returns the response, or an
awaitable of the response. The dispatcher converts exceptions of handlers to responses. `access`
runs before every handler, except for sends: `duemq.send` handles them in batches, and calls
`access` itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from duemq.net import codec, fields, layout
from duemq.net.layout import OPAQUE_MASK
from duemq.net.meters import RpcMeter
from duemq.net.notices import Notices
from duemq_common.codes import ResponseCode
from duemq_common.errors import FrameError, RequestError
from duemq_common.request import Request, RequestHandler, Response

log = logging.getLogger(__name__)
Deferred = Awaitable[Response | None]  # None: no response is sent
Handler = Callable[[Request], Response | Deferred]
"""Handler of a request: a function that returns the response, or a coroutine function."""


RecordResult = Callable[[int], None]
"""Records the code of the response to a request in an audit log."""


class AccessCheck(Protocol):
    """Check of a peer's permission to make a request."""

    def __call__(self, request: Request) -> RecordResult | None:
        """Check the credentials of a request; return what records its result, if it is audited.

        Raises:
            RequestError: The peer has no permission for the request.
        """
        ...


class ResponseReceiver(Protocol):
    """Receiver of responses that handlers make later."""

    def respond_later(self, later: LaterResponse, outcome: LaterOutcome) -> None:
        """Send the response; called once for each `LaterResponse`."""


class LaterResponse(Struct, eq=False, gc=False, kw_only=True):
    """Response that a handler makes later, without a task.

    The handler returns it and calls `finish` in a later turn of the event loop. A coroutine can
    await it in place of a receiver. Its holders forget it when it ends, since the collector of
    garbage does not visit it.

    Attributes:
        serialize_type: Encoding of the request.
        dispatcher: Measures the request; None: it was not begun by a dispatcher.
        since_ms: Start of the request.
    """

    request: Request
    receiver: ResponseReceiver | None = None
    serialize_type: int = layout.JSON_TYPE
    dispatcher: Dispatcher | None = None
    since_ms: int = 0
    record_result: RecordResult | None = None
    is_finished: bool = False

    def finish(self, outcome: LaterOutcome) -> None:
        """Send the response, none for None, or that to an exception; ignored after the first."""
        if self.is_finished:
            return
        self.is_finished = True
        if self.dispatcher is not None:
            outcome = self.dispatcher.end_later(self, outcome)
        if self.receiver is not None:
            self.receiver.respond_later(self, outcome)

    def cancel(self) -> None:
        """End the request without a response."""
        self.finish(None)

    def __await__(self) -> Generator[object, None, Response | None]:
        """Wait for the response; the request is cancelled with the wait.

        Raises:
            Exception: The handler has failed, and no dispatcher began the request.
        """
        return self._wait().__await__()

    async def _wait(self) -> Response | None:
        self.receiver = receiver = _Waiter()
        try:
            return await receiver.response
        finally:
            self.cancel()


LaterOutcome = Response | Exception | None


class _Waiter:
    """Receiver of one response for a coroutine."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.response: asyncio.Future[Response | None] = loop.create_future()

    def respond_later(self, later: LaterResponse, outcome: LaterOutcome) -> None:
        """Set the result."""
        if self.response.done():
            return
        if isinstance(outcome, Exception):
            self.response.set_exception(outcome)
        else:
            self.response.set_result(outcome)


class RequestsInFlight:
    """Requests of one connection that have no response yet: tasks, and later responses."""

    __slots__ = ("_ended", "_later", "_tasks")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: set[LaterResponse] = set()
        self._ended: asyncio.Event | None = None  # set when `_later` is empty

    def __len__(self) -> int:
        return len(self._tasks) + len(self._later)

    def add_task(self, task: asyncio.Task[None]) -> None:
        """Add a task, until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def add_later(self, later: LaterResponse) -> None:
        """Add a response that a handler makes later."""
        self._later.add(later)

    def end_later(self, later: LaterResponse) -> None:
        """Remove a response that is made."""
        self._later.discard(later)
        if self._ended is not None and not self._later:
            self._ended.set()

    async def finish(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for all, then cancel the rest."""
        work = self._tasks.copy()
        if self._later:
            self._ended = asyncio.Event()
            work.add(asyncio.create_task(_wait_for(self._ended), name="responses"))
        if not work:
            return
        _, late = await asyncio.wait(work, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for later in list(self._later):
            later.cancel()


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


class Calls:
    """Calls in flight of one connection.

    Args:
        peer: Name of the peer, for errors.
        count_max: Maximum number of calls in flight.
    """

    def __init__(self, peer: str, count_max: int) -> None:
        self._peer, self._count_max = peer, count_max
        self._last_opaque = 0
        self._in_flight: dict[int, asyncio.Future[Response]] = {}

    def next_opaque(self) -> int:
        """Return a number that no call in flight has."""
        while True:
            self._last_opaque = (self._last_opaque + 1) & OPAQUE_MASK
            if self._last_opaque not in self._in_flight:
                return self._last_opaque

    def receive(self, received: codec.ReceivedResponse) -> None:
        """Pass a response to its call."""
        future = self._in_flight.get(received.opaque)
        if future is not None and not future.done():
            future.set_result(received.response)

    def close(self) -> None:
        """End all calls: the connection is lost."""
        for future in list(self._in_flight.values()):
            if not future.done():
                future.set_exception(ConnectionResetError(f"{self._peer} closed the connection"))

    async def call(
        self, request: Request, write: Callable[[bytes], None], timeout_s: float
    ) -> Response:
        """Send a request and return its response, whatever its code.

        Raises:
            TimeoutError: No response in time.
            ConnectionError: The connection closed first, or too many calls are in flight.
        """
        if len(self._in_flight) >= self._count_max:
            raise ConnectionError(
                f"{self._peer}: {len(self._in_flight)} calls are in flight already"
            )
        opaque = self.next_opaque()
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._in_flight[opaque] = future
        try:
            write(codec.encode_request(replace(request, opaque=opaque)))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            if not future.done() or future.cancelled():
                raise
            return future.result()  # a late loop reads the response in the turn of the timeout
        finally:
            del self._in_flight[opaque]


class CheckedHandler(Struct, frozen=True):
    """Handler with checks that run before it.

    Attributes:
        required: Mandatory header fields.
        body_bytes_max: Maximum bytes of the body.
    """

    handler: Handler
    required: tuple[str, ...] = ()
    body_bytes_max: int = codec.FRAME_BYTES_MAX

    def __call__(self, request: Request) -> Response | Deferred:
        """Check a request, then call the handler.

        Raises:
            RequestError: A field is missing, or the body is too long.
        """
        if len(request.body) > self.body_bytes_max:
            text = f"the body has {len(request.body)} bytes; the limit is {self.body_bytes_max}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        for name in self.required:
            fields.text(request, name)
        return self.handler(request)


class Dispatcher:
    """Handlers by request code, with access check and meter.

    Args:
        handlers: Handlers by request code; `add` adds more.
        access: Access check for requests of known codes; None: every request is allowed.
        meter: Meter for requests of known codes.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        access: AccessCheck | None = None,
        meter: RpcMeter | None = None,
    ) -> None:
        self.access = access
        self._meter = meter
        self._failed = Notices(log, logging.ERROR)
        self._oneway_counts: dict[tuple[int, int], int] = {}  # by request and response code
        self._oneway_since_ms = 0
        self._handlers: dict[int, Handler] = {}
        self._async: set[int] = set()
        self.add(handlers or {})

    def add(self, handlers: Mapping[int, Handler]) -> None:
        """Add handlers for further request codes."""
        duplicates = self._handlers.keys() & handlers.keys()
        assert not duplicates, f"request codes {sorted(duplicates)} have two handlers"
        self._handlers |= handlers
        for code, each in handlers.items():
            function = each.handler if isinstance(each, CheckedHandler) else each
            if inspect.iscoroutinefunction(function):
                self._async.add(code)

    def delay(self, codes: Collection[int], until: Callable[[], Awaitable[None]]) -> None:
        """Delay all requests of `codes` until `until()` has returned."""
        self.wrap(codes, lambda handler: partial(_delayed, handler, until))

    def wrap(self, codes: Collection[int], wrapper: Callable[[Handler], RequestHandler]) -> None:
        """Replace the handlers of `codes` by what a function returns for them."""
        for code in self._handlers.keys() & codes:
            self._handlers[code] = wrapper(self._handlers[code])
            self._async.add(code)

    def __iter__(self) -> Iterator[int]:
        """Yield the request codes that have a handler."""
        return iter(self._handlers)

    def responds_at_once(self, code: int) -> bool:
        """Return whether the handler of a code is a plain function, so that no task is needed."""
        return code not in self._async

    def begin(self, request: Request, checked: Handler | None = None) -> Response | Deferred:
        """Return the response to a request, or an awaitable of it; never raise.

        Args:
            checked: Handler of a request whose access is already checked; None: check the access,
                and use the handler of the request code.
        """
        handler = checked or self._handlers.get(request.code)
        if handler is None:
            text = f"request type {request.code} not supported"
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        since_ms = self._meter.start() if self._meter is not None else 0
        record_result: RecordResult | None = None
        try:
            if self.access is not None and checked is None:
                record_result = self.access(request)
            result = handler(request)
        except Exception as error:
            result = refusal(error, request, self._failed)
        if isinstance(result, LaterResponse):
            if self._meter is not None:
                self._meter.wait(request)
            result.dispatcher, result.since_ms = self, since_ms
            result.record_result = record_result
            return result
        if not isinstance(result, Response):
            return self._finish(result, request, since_ms, record_result)
        if record_result is not None:
            record_result(result.code)
        if self._meter is not None:
            self._meter.finish(request, result.code, since_ms, waited=False)
        return result

    def handle_oneway(self, request: Request) -> None:
        """Handle a one-way request whose handler is a plain function that returns its response.

        It is checked as by `begin`; `end_oneway` measures all since its last call together.
        """
        if self._meter is not None and not self._oneway_counts:
            self._oneway_since_ms = self._meter.start()
        record_result: RecordResult | None = None
        try:
            if self.access is not None:
                record_result = self.access(request)
            result = self._handlers[request.code](request)
            assert isinstance(result, Response), request.code
        except Exception as error:
            result = refusal(error, request, self._failed)
        if record_result is not None:
            record_result(result.code)
        key = request.code, result.code
        self._oneway_counts[key] = self._oneway_counts.get(key, 0) + 1

    def end_oneway(self) -> None:
        """Measure the requests of `handle_oneway` at the end of a turn."""
        counts, self._oneway_counts = self._oneway_counts, {}
        if self._meter is not None:
            for (request_code, code), count in counts.items():
                since_ms = self._oneway_since_ms
                self._meter.together(request_code, code, count, since_ms, oneway=True)

    def end_later(self, later: LaterResponse, outcome: LaterOutcome) -> Response | None:
        """Measure a request that `begin` began; return its response."""
        if isinstance(outcome, Exception):
            outcome = refusal(outcome, later.request, self._failed)
        code = int(ResponseCode.SUCCESS) if outcome is None else outcome.code
        if later.record_result is not None:
            later.record_result(code)
        if self._meter is not None:
            self._meter.finish(later.request, code, later.since_ms, waited=True)
        return outcome

    async def _finish(
        self, work: Deferred, request: Request, since_ms: int, record_result: RecordResult | None
    ) -> Response | None:
        meter = self._meter
        code = int(ResponseCode.SYSTEM_ERROR)  # if the task is cancelled
        if meter is not None:
            meter.wait(request)
        try:
            response = await work
            code = response.code if response is not None else int(ResponseCode.SUCCESS)
        except Exception as error:
            response = refusal(error, request, self._failed)
            code = response.code
        finally:
            if record_result is not None:
                record_result(code)
            if meter is not None:
                meter.finish(request, code, since_ms, waited=True)
        return response


async def _delayed(
    handler: Handler, until: Callable[[], Awaitable[None]], request: Request
) -> Response | None:
    await until()
    result = handler(request)
    return result if isinstance(result, Response) else await result


def refusal(
    error: Exception, request: Request, log: Notices, header: dict[str, str] | None = None
) -> Response:
    """Return the response to a request whose handler raised; log all but `RequestError`."""
    if isinstance(error, RequestError):
        return Response(error.code, error.remark, header)
    log("%r: request %d failed", request.peer, request.code, exc_info=error)
    return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", header)


def encode_response(
    request: Request, response: Response | None, serialize_type: int
) -> list[bytes | memoryview]:
    """Return the buffers of a response frame in the encoding of its request.

    A one-way request, or a request without a response, has no buffers.
    """
    if request.oneway or response is None:
        return []
    return encode_numbered(response, request.opaque, serialize_type)


def encode_numbered(
    response: Response, opaque: int, serialize_type: int
) -> list[bytes | memoryview]:
    """Return the buffers of the response frame to the request with this opaque number."""
    try:
        return codec.encode_response(response, opaque, serialize_type=serialize_type)
    except FrameError as error:
        too_long = Response(ResponseCode.SYSTEM_ERROR, str(error))
        return codec.encode_response(too_long, opaque, serialize_type=layout.JSON_TYPE)
