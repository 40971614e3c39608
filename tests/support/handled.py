"""Result of a request handler, whether it responds synchronously or not."""

from __future__ import annotations

from duemq.net.dispatcher import Handler
from duemq_common.request import Request, Response


async def handled(handler: Handler, request: Request) -> Response | None:
    """Return the response.

    Raises:
        RequestError: The handler refused the request.
    """
    result = handler(request)
    return result if isinstance(result, Response) else await result
