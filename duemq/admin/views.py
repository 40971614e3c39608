"""Request 9001: views of broker and plugins as JSON.

    request 9001, field `view`     "" lists the views      "schedule_service.levels" shows one
                  other fields     arguments of a `ParameterizedView`
    response  0 + JSON body        17 with a remark: there is no such view

The code is above all of Apache's; an Apache broker responds with "not supported" (3).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping

import msgspec

from delayed_delivery.plugin import ParameterizedView
from delayed_delivery.steps import in_turns
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError, StoreError
from duemq_common.request import Request, RequestHandler, Response

View = Callable[[], object]


class RequestView:
    """View that depends on the account of the request.

    Args:
        view: Returns plain data for a request whose permission is checked.
    """

    def __init__(self, view: Callable[[Request], object]) -> None:
        self._view = view

    def __call__(self, request: Request | None = None) -> object:
        """Return the view for a request."""
        return None if request is None else self._view(request)


class AdminProcessor:
    """Handler of request 9001.

    Args:
        views: Functions by view name; each returns plain data (dicts, lists, numbers, text), or
            steps or a coroutine that return it.
    """

    def __init__(self, views: Mapping[str, View]) -> None:
        self._views = dict(views)

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.GET_VIEW: self.show}

    async def show(self, request: Request) -> Response:
        """Return one view, or the names of all."""
        name = request.fields.get("view", "")
        if not name:
            return Response(body=msgspec.json.encode({"views": sorted(self._views)}))
        view = self._views.get(name)
        if view is None:
            names = ", ".join(sorted(self._views)) or "none"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"no view {name}; there are: {names}")
        if isinstance(view, RequestView):
            value = view(request)
        else:
            value = view(request.fields) if isinstance(view, ParameterizedView) else view()
        if isinstance(value, Generator):
            value = await in_turns(value)
        elif isinstance(value, Coroutine):
            try:
                value = await value
            except StoreError as error:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return Response(body=msgspec.json.encode(value))
