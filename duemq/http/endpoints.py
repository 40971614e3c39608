"""Endpoints of the API: a table from which routes and the OpenAPI document are made.

Endpoint --> route: admission, parameters, body --> handler(call) --> result as JSON
    \\-----> openapi.py: parameters and schemas from the same types
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duemq.http.admission import Admission
from duemq.http.problems import Problem, problem_of
from duemq.http.sessions import AccountSession, Sessions

PREFIX: Final = "/api/v1"
JSON: Final = "application/json"
BODY_BYTES_MAX: Final = 8 << 20

JsonObject = dict[str, Any]


class NoParameters(msgspec.Struct):
    """Query without parameters."""


class Call(msgspec.Struct, kw_only=True):
    """Request with its decoded parameters.

    Attributes:
        path: Values of the parameters in the path.
        query, body: Values of the types that the endpoint declares.
        account: Access key of the caller; empty without accounts.
    """

    session: AccountSession
    headers: Mapping[str, str]
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Method and path of the API.

    Attributes:
        handler: Returns the result of a call.
        summary: One sentence for the document.
        tag: Group of the endpoint in the document.
        query: Struct of the query parameters.
        body: Struct of the JSON body; None: no body.
        result: Type of the result.
        status: Status of a success.
        headers: Request headers and their descriptions.
        problems: Statuses of problems in addition to those of every endpoint.
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[object]]
    summary: str
    tag: str
    result: object
    query: type[msgspec.Struct] = NoParameters
    body: type[msgspec.Struct] | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[int, ...] = ()


class EndpointRoute:
    """Handler of the requests of one endpoint."""

    def __init__(self, endpoint: Endpoint, admission: Admission, sessions: Sessions) -> None:
        self._endpoint, self._admission, self._sessions = endpoint, admission, sessions
        body = endpoint.body
        self._decoder = msgspec.json.Decoder(body) if body is not None else None
        self._encoder = msgspec.json.Encoder()

    def route(self) -> Route:
        """Return the route."""
        endpoint = self._endpoint
        return Route(PREFIX + endpoint.path, self.handle, methods=[endpoint.method])

    async def handle(self, request: Request) -> Response:
        """Return the response to a request; an error is a problem."""
        try:
            return await self._respond(request)
        except Exception as error:
            return problem_of(error).response()

    async def _respond(self, request: Request) -> Response:
        credentials = self._admission.admit(request)
        query = self._query(request)
        body = await self._body(request) if self._decoder is not None else None
        async with self._sessions.session(credentials) as session:
            call = Call(
                session=session,
                headers=request.headers,
                path=request.path_params,
                query=query,
                body=body,
                account=credentials.access_key if credentials else "",
            )
            result = await self._endpoint.handler(call)
        return Response(self._encoder.encode(result), self._endpoint.status, media_type=JSON)

    def _query(self, request: Request) -> msgspec.Struct | None:
        kind = self._endpoint.query
        if kind is NoParameters and not request.scope["query_string"]:
            return None
        pairs = request.query_params.multi_items()
        names = [name for name, _ in pairs]
        unknown = sorted(set(names) - set(kind.__struct_fields__))
        if unknown or len(names) != len(set(names)):
            name = unknown[0] if unknown else max(names, key=names.count)
            fault = "is unknown" if unknown else "is given twice"
            raise invalid(f"the query parameter {name[:80]!r} {fault}")
        try:
            return msgspec.convert(dict(pairs), kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(f"query parameter: {error}") from None

    async def _body(self, request: Request) -> object:
        assert self._decoder is not None
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON:
            title = "The body is not JSON"
            raise Problem(415, "media-type", title, f"send Content-Type: {JSON}")
        data = await _bytes_of(request)
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise invalid(f"body: {error}") from None


async def _bytes_of(request: Request) -> bytes:
    """Return the body of a request; raise a problem if it is too long."""
    length = request.headers.get("content-length", "")
    chunks, size = [], int(length) if length.isdigit() else 0
    if size <= BODY_BYTES_MAX:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                break
            chunks.append(chunk)
    if size > BODY_BYTES_MAX:
        title, headers = "The body is too long", {"Connection": "close"}
        detail = f"the limit is {BODY_BYTES_MAX} bytes"
        raise Problem(413, "too-long", title, detail, headers=headers)
    return b"".join(chunks)


def invalid(detail: str) -> Problem:
    """Return the problem of an invalid parameter or body."""
    return Problem(400, "invalid", "The request is invalid", detail)
