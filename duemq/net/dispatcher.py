"""Request dispatcher: one table of request codes and handlers, for the broker and the name server.

    request --> known code --> access --> size, required fields --> handler --> response

The dispatcher knows no socket. `begin` takes a decoded request and returns the response, or the
coroutine that will return it; `answer_frame` takes and returns the bytes of a frame. Errors become
responses here and nowhere else; so do refusals for want of permission: `access` is called before
any handler, and also before sends, which are handled in batches.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from delivery.plugin import Request, Response
from duemq.net import codec, fields, layout
from duemq.net.codes import ResponseCode
from duemq.net.notices import Notices
from message_store.errors import FrameError, RequestError

log = logging.getLogger(__name__)
Deferred = Awaitable[Response | None]  # None: there is no response to send
Handler = Callable[[Request], Response | Deferred]
"""Handles a request: a function usually responds at once, an async function later."""


class AccessCheck(Protocol):
    """Decides whether a peer may make a request."""

    def __call__(self, request: Request) -> None:
        """Check the credentials of a request.

        Raises:
            RequestError: The peer may not make it.
        """
        ...


class RequestMeter(Protocol):
    """Measures requests."""

    def start(self) -> int:
        """Return the time at which a request begins, in ms."""
        ...

    def wait(self, request: Request) -> None:
        """Count a request in flight: its handler did not respond at once."""
        ...

    def finish(self, request: Request, code: int, since_ms: int, *, waited: bool) -> None:
        """Record the response code and the latency of a request that began at `since_ms`."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """A handler with the checks that run before it.

    Attributes:
        required: Header fields without which the request is refused.
        body_bytes_max: Maximum bytes of the body.
    """

    handler: Handler
    required: tuple[str, ...] = ()
    body_bytes_max: int = codec.FRAME_BYTES_MAX

    def __call__(self, request: Request) -> Response | Deferred:
        """Check the request, then handle it.

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
    """Handles the requests of any number of connections.

    Args:
        handlers: Handlers by request code; `add` brings more.
        access: Checks every request of a known code; None: every peer may do everything.
        meter: Measures every request of a known code.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        access: AccessCheck | None = None,
        meter: RequestMeter | None = None,
    ) -> None:
        self.access = access
        self._meter = meter
        self._failed = Notices(log, logging.ERROR)
        self._handlers: dict[int, Handler] = {}
        self._async: set[int] = set()
        self.add(handlers or {})

    def add(self, handlers: Mapping[int, Handler]) -> None:
        """Add handlers of codes that have none yet."""
        twice = self._handlers.keys() & handlers.keys()
        assert not twice, f"request codes {sorted(twice)} have two handlers"
        self._handlers |= handlers
        for code, each in handlers.items():
            function = each.handler if isinstance(each, Route) else each
            if inspect.iscoroutinefunction(function):
                self._async.add(code)

    def hold(self, codes: Collection[int], until: Callable[[], Awaitable[None]]) -> None:
        """Have every request of some codes handled after `until()` has returned."""
        for code in self._handlers.keys() & codes:
            self._handlers[code] = partial(_held, self._handlers[code], until)
            self._async.add(code)

    def __iter__(self) -> Iterator[int]:
        """Yield the request codes that have a handler."""
        return iter(self._handlers)

    def responds_at_once(self, code: int) -> bool:
        """Return whether requests of this code usually need no task."""
        return code not in self._async

    def begin(self, request: Request) -> Response | Deferred:
        """Return the response to a request, or what returns it when awaited; never raise."""
        handler = self._handlers.get(request.code)
        if handler is None:
            text = f"request type {request.code} not supported"
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
        since_ms = self._meter.start() if self._meter is not None else 0
        try:
            if self.access is not None:
                self.access(request)
            found = handler(request)
        except Exception as error:
            found = refusal(error, request, self._failed)
        if not isinstance(found, Response):
            return self._finish(found, request, since_ms)
        if self._meter is not None:
            self._meter.finish(request, found.code, since_ms, waited=False)
        return found

    async def _finish(self, work: Deferred, request: Request, since_ms: int) -> Response | None:
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
            if meter is not None:
                meter.finish(request, code, since_ms, waited=True)
        return response

    async def answer_frame(self, data: bytes) -> bytes:
        """Return the frame that answers the request in `data`; b"" for a one-way request.

        Raises:
            FrameError: `data` is not one whole frame of a request.
        """
        view = memoryview(data)
        frame = codec.next_frame(view, 0, len(data))
        command = codec.decode_frame(view, frame) if frame is not None else None
        if frame is None or frame.end != len(data) or not isinstance(command, Request):
            raise FrameError("not one whole request")
        found = self.begin(command)
        response = found if isinstance(found, Response) else await found
        return b"".join(encode_answer(command, response, frame.serialize_type))


async def _held(
    handler: Handler, until: Callable[[], Awaitable[None]], request: Request
) -> Response | None:
    await until()
    found = handler(request)
    return found if isinstance(found, Response) else await found


def refusal(
    error: Exception, request: Request, log: Notices, header: dict[str, str] | None = None
) -> Response:
    """Return the response to a request whose handler raised; log what is no `RequestError`."""
    if isinstance(error, RequestError):
        return Response(error.code, error.remark, header)
    log("%r: request %d failed", request.peer, request.code, exc_info=error)
    return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", header)


def encode_answer(
    request: Request, response: Response | None, serialize_type: int
) -> list[bytes | memoryview]:
    """Return the parts of the frame that answers a request in its encoding; one-way: none."""
    if request.oneway or response is None:
        return []
    try:
        return codec.encode_response(response, request.opaque, serialize_type=serialize_type)
    except FrameError as error:
        too_long = Response(ResponseCode.SYSTEM_ERROR, str(error))
        return codec.encode_response(too_long, request.opaque, serialize_type=layout.JSON_TYPE)
