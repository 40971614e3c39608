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
from starlette.types import Receive, Scope, Send

from duemq.http import deliveries, pending, registry, schedules, undelivered
from duemq.http.admission import Admission
from duemq.http.brokers import audits, configuration, migrations, operators, views
from duemq.http.endpoints import JSON, PREFIX, Endpoint, EndpointApplication
from duemq.http.openapi import document
from duemq.http.problems import on_error
from duemq.http.sends import Sends
from duemq.http.sessions import Sessions
from duemq.http.token_requests import TokenRequests
from duemq.http.tokens import Tokens

DOCUMENT_PATH: Final = f"{PREFIX}/openapi.json"


def endpoints(tokens: Tokens) -> tuple[Endpoint, ...]:
    """Return the endpoints of the API.

    Args:
        tokens: Tokens that the API issues.
    """
    return (
        *TokenRequests(tokens).endpoints(),
        *Sends().endpoints(),
        *pending.ENDPOINTS,
        *undelivered.ENDPOINTS,
        *schedules.ENDPOINTS,
        *registry.ENDPOINTS,
        *views.ENDPOINTS,
        *audits.ENDPOINTS,
        *migrations.ENDPOINTS,
        *configuration.ENDPOINTS,
        *operators.ENDPOINTS,
        *deliveries.ENDPOINTS,
    )


class ApiApplication:
    """ASGI application of the API.

    A path without parameters is found in a table; Starlette routes the others.

    Args:
        others: Further routes, such as those of probes.
    """

    def __init__(
        self, admission: Admission, sessions: Sessions, others: Sequence[BaseRoute] = ()
    ) -> None:
        table = endpoints(admission.tokens)
        encoded = msgspec.json.encode(document(table))

        async def show_document(request: Request) -> Response:
            return Response(encoded, media_type=JSON)

        self._fixed: dict[tuple[str, str], EndpointApplication] = {}
        routes: list[BaseRoute] = []
        for endpoint in table:
            application = EndpointApplication(endpoint, admission, sessions)
            path = PREFIX + endpoint.path
            if "{" not in path:
                self._fixed[endpoint.method, path] = application
            pattern = path.replace("}", ":path}") if endpoint.has_slashes else path
            routes.append(Route(pattern, application, methods=[endpoint.method]))
        routes += [Route(DOCUMENT_PATH, show_document, methods=["GET"]), *others]
        errors = {HTTPException: on_error, Exception: on_error}
        self._others = Starlette(routes=routes, exception_handlers=errors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._fixed.get((scope["method"], scope["path"]), self._others)
        await application(scope, receive, send)
