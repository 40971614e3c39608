"""Requests other than sends: queued by connection, begun in turns of limited time.

One-way commits of offsets are the most frequent requests, and take less time than the queue. They
are handled at once; behind a queued request of their connection they stay unparsed.

The pulls of thousands of consumers take seconds when the broker is overloaded. Of the requests that
begin in a turn, each second one is another request if one waits: heartbeats, lists of members and
commands of operators, whose clients give up after a few seconds.

Frames that a connection receives while its earlier requests are queued stay unparsed, too;
`on_begun` reports when the last of these requests has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.layout import PREFIX, PREFIX_BYTES, WORD_BYTES
from duemq.send.fair_queue import FairQueue
from duemq_common.codes import RequestCode
from duemq_common.request import Request

OTHERS, PULLS, LARGE = range(3)  # ranks of requests
LARGE_BYTES: Final = 1 << 14  # of a body; one larger request begins per turn
BEGUN_BYTES_MAX: Final = 1 << 16  # bodies of the other requests that begin in one turn
COMMIT: Final = RequestCode.UPDATE_CONSUMER_OFFSET.value
COMMIT_START: Final = b'{"code":%d,' % COMMIT  # as clients write it; others are decoded singly
PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
CONSUMER_STARTS: Final = (COMMIT_START, *(b'{"code":%d,' % code for code in PULL_CODES))
COMMIT_BYTES_MAX: Final = 4_096  # of a header; longer ones are decoded singly
COMMITS_MAX: Final = 64  # handled between two checks of the time


class RequestTurns:
    """Queued requests of all connections.

    Args:
        time_s: Returns seconds of a monotonic clock.
        on_begun: Called with a connection of `hold_frames` when none of its requests is queued.
        dispatcher: Handles one-way commits; None: they are queued.
    Attributes:
        count: Number of queued requests; read only.
        has_handled: Whether requests were handled at once in this turn; read only.
    """

    def __init__(
        self,
        time_s: Callable[[], float],
        on_begun: Callable[[Connection], None],
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self._time_s, self._on_begun, self._dispatcher = time_s, on_begun, dispatcher
        self._requests: FairQueue[Connection, tuple[Request, int]] = FairQueue(ranks=3)
        self._is_pull_next = False
        self._with_frames: set[Connection] = set()
        self.count = 0
        self.has_handled = False

    def __contains__(self, connection: Connection) -> bool:
        """Return whether requests of a connection are queued."""
        return connection in self._requests

    def precede_commit(self, connection: Connection) -> bool:
        """Return whether requests of a connection are queued, and a commit is its next frame."""
        return (
            self._dispatcher is not None
            and connection.received.begins_with(COMMIT_START)
            and connection in self._requests
        )

    def hold_frames(self, connection: Connection) -> None:
        """Call `on_begun` when the queued requests of this connection have begun."""
        self._with_frames.add(connection)

    def add(self, connection: Connection, request: Request, serialize_type: int) -> bool:
        """Queue a request, or handle it at once; return whether it was handled."""
        if request.code == COMMIT and self._is_handled(connection, request):
            return True
        self.count += 1
        rank = PULLS if request.code in PULL_CODES else OTHERS
        if len(request.body) > LARGE_BYTES:
            rank = LARGE
        self._requests.add(connection, (request, serialize_type), rank)
        if rank == LARGE:  # it may wait for many others
            connection.in_flight_bytes += len(request.body)
            connection.update_charge()
        return False

    def _is_handled(self, connection: Connection, request: Request) -> bool:
        """Handle a commit at once if it is one-way, without a body, and not behind others."""
        dispatcher = self._dispatcher
        if dispatcher is None or not request.oneway or request.body:
            return False
        if connection in self._requests:
            return False
        request.peer = connection
        self.has_handled = True
        dispatcher.handle_oneway(request)
        return True

    def take_commits(self, connection: Connection) -> int:
        """Handle the leading frames that are one-way commits; return how many.

        Consumers send the commits of all their queues one after another. The kernel of sends reads
        the first frame that is another request, incomplete or malformed.
        """
        received = connection.received
        for count in range(COMMITS_MAX):
            start = received.start
            if received.end - start < PREFIX_BYTES:
                return count
            length, header_bytes = PREFIX.unpack_from(received.view, start)  # the type of JSON is 0
            end = start + WORD_BYTES + length
            has_body = length != header_bytes + WORD_BYTES
            if has_body or header_bytes > COMMIT_BYTES_MAX or end > received.end:
                return count
            if not received.begins_with(COMMIT_START):
                return count
            item = codec.next_command(received.view, start, end)
            request = None if item is None else item[0]
            if not isinstance(request, Request) or request.code != COMMIT:
                return count  # the header has a second member with the name
            if not self._is_handled(connection, request):
                return count
            received.take(end)
        return COMMITS_MAX

    def end_turn(self) -> None:
        """Measure the requests that were handled at once."""
        assert self._dispatcher is not None
        self.has_handled = False
        self._dispatcher.end_oneway()

    def begin(self, end_s: float) -> None:
        """Begin small requests until `end_s`, then one large request.

        Handlers that run as tasks take their time after this turn, in proportion to the size of
        their request.
        """
        requests = self._requests
        others, pulls, large = requests.keys
        begun_bytes = 0
        while (others or pulls) and begun_bytes < BEGUN_BYTES_MAX:
            is_pull = bool(pulls) and (self._is_pull_next or not others)
            self._is_pull_next = not is_pull
            connection, (request, serialize_type) = requests.pop(PULLS if is_pull else OTHERS)
            self.count -= 1
            connection.dispatch(request, serialize_type)
            begun_bytes += len(request.body)
            if self._with_frames:
                self._check_frames(connection)
            if self._time_s() > end_s:
                break
        if large:
            connection, (request, serialize_type) = requests.pop(LARGE)
            self.count -= 1
            connection.in_flight_bytes -= len(request.body)
            connection.update_charge()
            connection.dispatch(request, serialize_type)
            self._check_frames(connection)

    def _check_frames(self, connection: Connection) -> None:
        if connection in self._with_frames and connection not in self._requests:
            self._with_frames.discard(connection)
            self._on_begun(connection)
