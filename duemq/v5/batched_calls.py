"""Calls of one method, of all clients, that are served together once per turn of the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from duemq.net.http2.grpc_call import GrpcCall
from duemq.net.http2.grpc_status import GrpcStatus
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error, status

CALLS_MAX: Final = 256  # per turn; connections are served between turns
CheckedT = TypeVar("CheckedT")


class BatchedCalls(ABC, Generic[CheckedT]):
    """Collects the calls of a turn, and responds to those that fail a check (`CallTurns`).

    Args:
        response_type: Response of the method.
    """

    def __init__(
        self, response_type: type[api.SendMessageResponse | api.AckMessageResponse]
    ) -> None:
        self._response_type = response_type
        self._calls: list[GrpcCall] = []

    def take(self, call: GrpcCall) -> None:
        """Add a call to the turn; it is served at the end of the turn."""
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._finish)
        self._calls.append(call)

    def _finish(self) -> None:
        """Serve the calls of the turn; calls beyond `CALLS_MAX` are served in the next turn."""
        calls, self._calls = self._calls[:CALLS_MAX], self._calls[CALLS_MAX:]
        if self._calls:
            asyncio.get_running_loop().call_soon(self._finish)
        self._serve(calls)

    def _checked(self, calls: Sequence[GrpcCall]) -> list[CheckedT]:
        """Check calls; return the valid ones that need no handler."""
        valid_calls = []
        for call in calls:
            if call.is_finished:
                continue
            try:
                checked = self._check(call)
            except V5Error as error:
                response = self._response_type(status=status(error.code, error.text))
                call.send(response.SerializeToString())
                call.finish(GrpcStatus.OK)
            except Exception as error:
                call.fail(error)
            else:
                if checked is not None:
                    valid_calls.append(checked)
        return valid_calls

    @abstractmethod
    def _serve(self, calls: Sequence[GrpcCall]) -> None:
        """Append the records of calls, and respond."""

    @abstractmethod
    def _check(self, call: GrpcCall) -> CheckedT | None:
        """Check a call; return what `_serve` needs, or None if the call goes to its handler.

        Raises:
            V5Error: The call is refused with a status.
        """
