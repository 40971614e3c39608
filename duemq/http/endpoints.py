"""Endpoints of the API: a table from which applications and the OpenAPI document are made.

Endpoint --> route: admission, parameters, body --> handler(call) --> result as JSON
    \\-----> openapi.py: parameters and schemas from the same types
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from duemq.auth.signature import Credentials
from duemq.client.errors import Refused
from duemq.http.admission import Admission
from duemq.http.problems import Problem, problem_of
from duemq.http.sessions import AccountSession, Sessions

PREFIX: Final = "/api/v1"
JSON: Final = "application/json"
JSON_BYTES: Final = JSON.encode()
BODY_BYTES_MAX: Final = 8 << 20
PARAMETERS_MAX: Final = 100
NO_CURSOR: Final = "the cursor is not one of this list: give that of the page before, or none"

JsonValue = Any
JsonObject = dict[str, JsonValue]


class NoParameters(msgspec.Struct):
    """Query without parameters."""


class Call(msgspec.Struct, kw_only=True):
    """Request with its decoded parameters.

    Attributes:
        path: Values of the parameters in the path.
        query, body: Values of the types that the endpoint declares.
        credentials: Account of the caller; None without accounts.
    """

    session: AccountSession
    headers: Mapping[str, str]
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    credentials: Credentials | None = None

    @property
    def account(self) -> str:
        """Access key of the caller; empty without accounts."""
        return self.credentials.access_key if self.credentials else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Method and path of the API.

    Attributes:
        has_slashes: Whether the name in the path may contain slashes, as keys of messages may.
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

    path: str
    handler: Callable[[Call], Awaitable[object]]
    summary: str
    tag: str
    result: object
    method: str = "GET"
    query: type[msgspec.Struct] = NoParameters
    body: type[msgspec.Struct] | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[int, ...] = ()
    has_slashes: bool = False


class EndpointApplication:
    """ASGI application of one endpoint.

    It reads the scope and sends the response itself: a send takes a third less processor time than
    with a `Request` and a `Response`.
    """

    def __init__(self, endpoint: Endpoint, admission: Admission, sessions: Sessions) -> None:
        self._endpoint, self._admission, self._sessions = endpoint, admission, sessions
        body = endpoint.body
        self._decoder = msgspec.json.Decoder(body) if body is not None else None
        self._encoder = msgspec.json.Encoder()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._result(scope, receive)
        except Exception as error:
            await problem_of(error).response()(scope, receive, send)
            return
        headers = [(b"content-type", JSON_BYTES), (b"content-length", b"%d" % len(body))]
        status = self._endpoint.status
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _result(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of the response.

        Raises:
            Exception: Of the handler, or a `Problem`.
        """
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        address = scope["client"][0] if scope["client"] else ""
        credentials = self._admission.admit(headers, address)
        query = self._query(scope["query_string"])
        body = None
        if self._decoder is not None:
            body = self._body(headers, await body_bytes(headers, receive))
        with self._sessions.session(credentials) as session:
            if credentials is not None and not self._admission.is_accepted(credentials):
                await self._check_at_brokers(session, credentials, address)
            call = Call(
                session=session,
                headers=headers,
                path=scope.get("path_params", {}),
                query=query,
                body=body,
                credentials=credentials,
            )
            return self._encoder.encode(await self._endpoint.handler(call))

    async def _check_at_brokers(
        self, session: AccountSession, credentials: Credentials, address: str
    ) -> None:
        """Let brokers check an account whose secret is not known here; count a failed login.

        Raises:
            ClientError: They refuse it, or none responds.
            Problem: 429: The address had too many failed logins.
        """
        try:
            await session.check_account()
        except Refused:
            self._admission.count_failure(address)
            raise
        self._admission.accept(credentials)

    def _query(self, text: bytes) -> msgspec.Struct | None:
        if not text:
            return None
        kind = self._endpoint.query
        try:
            pairs = parse_qsl(text.decode("ascii"), True, max_num_fields=PARAMETERS_MAX)
        except ValueError as error:
            raise invalid(f"query: {error}") from None
        names = [name for name, _ in pairs]
        unknown = sorted(set(names) - set(kind.__struct_fields__))
        if unknown or len(names) != len(set(names)):
            name = unknown[0] if unknown else max(names, key=names.count)
            fault = "is unknown" if unknown else "is given twice"
            raise invalid(f"the query parameter {name[:80]!r} {fault}")
        try:
            return msgspec.convert(dict(pairs), kind, strict=False)
        except msgspec.ValidationError as error:
            if str(error).endswith("`$.cursor`"):
                raise invalid(NO_CURSOR) from None
            raise invalid(f"query parameter: {error}") from None

    def _body(self, headers: Mapping[str, str], data: bytes) -> object:
        assert self._decoder is not None
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != JSON:
            title = "The body is not JSON"
            raise Problem(415, "media-type", title, f"send Content-Type: {JSON}")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise invalid(f"body: {error}") from None


async def body_bytes(
    headers: Mapping[str, str], receive: Receive, bytes_max: int = BODY_BYTES_MAX
) -> bytes:
    """Return the body of a request.

    Raises:
        Problem: The body is too long, or its end is missing.
    """
    length = headers.get("content-length", "")
    size = int(length) if length.isdigit() else 0
    chunks: list[bytes] = []
    more = size <= bytes_max
    if more:
        size = 0
    while more and size <= bytes_max:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise invalid("the body is incomplete")
        chunk = event.get("body", b"")
        size += len(chunk)
        chunks.append(chunk)
        more = event.get("more_body", False)
    if size > bytes_max:
        title, close = "The body is too long", {"Connection": "close"}
        detail = f"the limit is {bytes_max} bytes"
        raise Problem(413, "too-long", title, detail, headers=close)
    return b"".join(chunks)


def invalid(detail: str) -> Problem:
    """Return the problem of an invalid parameter or body."""
    return Problem(400, "invalid", "The request is invalid", detail)
