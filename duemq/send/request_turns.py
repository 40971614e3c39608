"""Requests other than sends: queued by connection, begun in turns of limited time.

Frames that a connection receives while its earlier requests are queued stay unparsed; `on_begun`
reports when the last of these requests has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duemq.net.connection import Connection
from duemq.send.fair_queue import FairQueue
from duemq_common.request import Request

LARGE_BYTES: Final = 1 << 14  # of a body; one larger request begins per turn
BEGUN_BYTES_MAX: Final = 1 << 16  # bodies of the other requests that begin in one turn


class RequestTurns:
    """Queued requests of all connections.

    Args:
        time_s: Returns seconds of a monotonic clock.
        on_begun: Called with a connection of `hold_frames` when none of its requests is queued.
    Attributes:
        count: Number of queued requests; read only.
    """

    def __init__(self, time_s: Callable[[], float], on_begun: Callable[[Connection], None]) -> None:
        self._time_s, self._on_begun = time_s, on_begun
        self._requests: FairQueue[Connection, tuple[Request, int]] = FairQueue()
        self._with_frames: set[Connection] = set()
        self.count = 0

    def __contains__(self, connection: Connection) -> bool:
        """Return whether requests of a connection are queued."""
        return connection in self._requests

    def hold_frames(self, connection: Connection) -> None:
        """Call `on_begun` when the queued requests of this connection have begun."""
        self._with_frames.add(connection)

    def add(self, connection: Connection, request: Request, serialize_type: int) -> None:
        """Queue a request."""
        self.count += 1
        is_large = len(request.body) > LARGE_BYTES
        self._requests.add(connection, (request, serialize_type), is_large=is_large)
        if is_large:  # it may wait for many others
            connection.in_flight_bytes += len(request.body)
            connection.update_charge()

    def begin(self, end_s: float) -> None:
        """Begin small requests until `end_s`, then one large request.

        Handlers that run as tasks take their time after this turn, in proportion to the size of
        their request.
        """
        requests = self._requests
        begun_bytes = 0
        while requests.small and begun_bytes < BEGUN_BYTES_MAX:
            connection, (request, serialize_type) = requests.pop()
            self.count -= 1
            connection.dispatch(request, serialize_type)
            begun_bytes += len(request.body)
            if self._with_frames:
                self._check_frames(connection)
            if self._time_s() > end_s:
                break
        if requests.large:
            connection, (request, serialize_type) = requests.pop(is_large=True)
            self.count -= 1
            connection.in_flight_bytes -= len(request.body)
            connection.update_charge()
            connection.dispatch(request, serialize_type)
            self._check_frames(connection)

    def _check_frames(self, connection: Connection) -> None:
        if connection in self._with_frames and connection not in self._requests:
            self._with_frames.discard(connection)
            self._on_begun(connection)
