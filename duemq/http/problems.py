"""Errors as problem details (RFC 9457).

{"type": "urn:duemq:problem:refused", "title": "The broker refused the request",
 "status": 403, "detail": "...", "code": 16}
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duemq.client.errors import (
    ClientError,
    Closed,
    NoBroker,
    NoRoute,
    NotSent,
    Refused,
    Unreachable,
    Unsupported,
)
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError

log = logging.getLogger(__name__)
MEDIA_TYPE: Final = "application/problem+json"
NAMESPACE: Final = "urn:duemq:problem:"
STATUS: Final[Mapping[int, int]] = {
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.TOPIC_NOT_EXIST: 404,
    ResponseCode.QUERY_NOT_FOUND: 404,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 404,
    ResponseCode.INVALID_PARAMETER: 400,
    ResponseCode.MESSAGE_ILLEGAL: 400,
    ResponseCode.SYSTEM_BUSY: 503,
    ResponseCode.SERVICE_NOT_AVAILABLE: 503,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: 501,
}
"""Status by the code of a broker's response; 502 for others."""


class ProblemDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of an error response.

    Attributes:
        type: Identifier of the kind of problem.
        code: Response code of the broker that refused the request.
        message_id: Unique id of a message that may be stored or not.
    """

    type: str
    title: str
    status: int
    detail: str = ""
    code: int | None = None
    message_id: str = ""


class Problem(Exception):
    """Error response to a request.

    Args:
        kind: Last part of the type.
        headers: Headers of the response.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        title: str,
        detail: str = "",
        *,
        code: int | None = None,
        message_id: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{title}: {detail}")
        self.headers = dict(headers or {})
        self.details = ProblemDetails(
            type=NAMESPACE + kind,
            title=title,
            status=status,
            detail=detail,
            code=code,
            message_id=message_id,
        )

    def response(self) -> Response:
        """Return the response."""
        body = msgspec.json.encode(self.details)
        return Response(body, self.details.status, self.headers, MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """Return the problem that an exception of a handler stands for."""
    match error:
        case Problem():
            return error
        case RequestError():  # and the client's Refused
            status = STATUS.get(error.code, 502)
            title = "The broker refused the request"
            return Problem(status, "refused", title, error.remark, code=error.code)
        case NotSent():
            return _not_sent(error)
        case NoBroker() | Unreachable() | Closed():
            return Problem(503, "unreachable", "A broker did not respond", str(error))
        case NoRoute():
            return Problem(404, "no-route", "No broker has the topic", str(error))
        case Unsupported():
            return Problem(501, "unsupported", "The broker does not have the feature", str(error))
        case ClientError():
            return Problem(502, "broker", "The request failed", str(error))
        case ValueError():
            return Problem(400, "invalid", "The request is invalid", str(error))
    log.error("a request failed", exc_info=error)
    return Problem(500, "internal", "The request failed; see the log of the server")


def _not_sent(error: NotSent) -> Problem:
    cause = error.__cause__
    if isinstance(cause, Refused | NoRoute):
        problem = problem_of(cause)
        problem.details.message_id = error.message_id
        return problem
    title = "It is not known whether the message is stored"
    return Problem(503, "not-acknowledged", title, str(error), message_id=error.message_id)


async def on_error(request: Request, error: Exception) -> Response:
    """Return the response to a request whose path or method does not exist, or that failed."""
    status = getattr(error, "status_code", 500)
    headers = getattr(error, "headers", None)
    if status == 404:
        return Problem(404, "no-such-path", "There is no such path", request.url.path).response()
    if status == 405:
        title = "The path does not have this method"
        return Problem(405, "no-such-method", title, request.method, headers=headers).response()
    return problem_of(error).response()
