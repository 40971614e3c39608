"""Configuration requests: update (25), show (26). AdminBrokerProcessor, Configuration"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import parse_properties
from duemq_common.data_version import DataVersion
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Request, RequestHandler, Response

log = logging.getLogger(__name__)
BODY_BYTES_MAX = 1 << 17  # the handler blocks the event loop


class ConfigProcessor:
    """Handler of codes 25 and 26.

    Args:
        values: Returns the current value of every key.
        version: Returns the version of the configuration.
        reconfigure: Applies all changes or none; raises ConfigError for an invalid value.
        frozen: Returns the keys that may not be changed by request.
    """

    def __init__(
        self,
        values: Callable[[], Mapping[str, str]],
        version: Callable[[], DataVersion],
        reconfigure: Callable[[Mapping[str, str]], Awaitable[None]],
        frozen: Callable[[], frozenset[str]],
    ) -> None:
        self._values, self._version = values, version
        self._reconfigure, self._frozen = reconfigure, frozen

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update,
            RequestCode.GET_BROKER_CONFIG: self.show,
        }

    async def update(self, request: Request) -> Response:
        """Apply the `key=value` lines of the body, all or none."""
        if len(request.body) > BODY_BYTES_MAX:
            text = f"the body has {len(request.body)} bytes; the limit is {BODY_BYTES_MAX}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        try:
            changes = dict(parse_properties(request.body.decode(), source="request 25"))
            forbidden = sorted(self._frozen() & changes.keys())
            if forbidden:
                text = f"Can not update config in black list: {', '.join(forbidden)}"
                raise RequestError(ResponseCode.NO_PERMISSION, text)
            if changes:
                await self._reconfigure(changes)
        except (ConfigError, UnicodeDecodeError) as fault:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"update config: {fault}") from fault
        log.info("configuration changed by %r: %s", request.peer, ascii(sorted(changes)))
        return Response()

    async def show(self, request: Request) -> Response:
        """Return every key, sorted, and the version."""
        lines = [f"{key}={value}\n" for key, value in sorted(self._values().items())]
        version = msgspec.json.encode(self._version().to_json()).decode()
        return Response(fields={"version": version}, body="".join(lines).encode())
