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

from duemq.http import operations, pending, registry, schedules
from duemq.http.admission import Admission
from duemq.http.endpoints import JSON, PREFIX, Endpoint, EndpointRoute
from duemq.http.openapi import document
from duemq.http.problems import on_error
from duemq.http.sends import Sends
from duemq.http.sessions import Sessions

DOCUMENT_PATH: Final = f"{PREFIX}/openapi.json"


def endpoints() -> tuple[Endpoint, ...]:
    """Return the endpoints of the API."""
    return (
        *Sends().endpoints(),
        *pending.ENDPOINTS,
        *schedules.ENDPOINTS,
        *registry.ENDPOINTS,
        *operations.ENDPOINTS,
    )


def api_application(
    admission: Admission, sessions: Sessions, others: Sequence[BaseRoute] = ()
) -> Starlette:
    """Return the application of the API.

    Args:
        others: Further routes, such as those of probes.
    """
    table = endpoints()
    routes: list[BaseRoute] = [
        EndpointRoute(endpoint, admission, sessions).route() for endpoint in table
    ]

    async def show_document(request: Request) -> Response:
        return Response(msgspec.json.encode(document(table)), media_type=JSON)

    routes += [Route(DOCUMENT_PATH, show_document, methods=["GET"]), *others]
    errors = {HTTPException: on_error, Exception: on_error}
    return Starlette(routes=routes, exception_handlers=errors)
