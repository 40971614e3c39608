"""Application of the API: endpoints, document, probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duemq.http import pending, sends
from duemq.http.admission import Admission
from duemq.http.endpoints import JSON, PREFIX, Endpoint, EndpointRoute
from duemq.http.openapi import document
from duemq.http.problems import on_error
from duemq.http.sessions import Sessions

ENDPOINTS: Final[tuple[Endpoint, ...]] = (*sends.ENDPOINTS, *pending.ENDPOINTS)
DOCUMENT_PATH: Final = f"{PREFIX}/openapi.json"


def api_application(
    admission: Admission, sessions: Sessions, others: Sequence[BaseRoute] = ()
) -> Starlette:
    """Return the application of the API.

    Args:
        others: Further routes, such as those of probes.
    """
    routes: list[BaseRoute] = [
        EndpointRoute(endpoint, admission, sessions).route() for endpoint in ENDPOINTS
    ]
    routes += [Route(DOCUMENT_PATH, show_document, methods=["GET"]), *others]
    errors = {HTTPException: on_error, Exception: on_error}
    return Starlette(routes=routes, exception_handlers=errors)


async def show_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return Response(msgspec.json.encode(document(ENDPOINTS)), media_type=JSON)
