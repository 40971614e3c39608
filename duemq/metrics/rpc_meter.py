"""RPC meter: latency and number in flight of requests, by request code.

The dispatcher reports every request. Sends are not handled one by one: their
batches are noted by `sends`. NettyRemotingAbstract.processRequestCommand, RemotingMetricsManager
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from delivery.plugin import Request
from duemq.metrics.meters import CREATE_BOUNDS_MS, RPC_BOUNDS_MS, Observations
from duemq.net.codes import RequestCode, ResponseCode
from duemq.send.put_latency import PutLatency
from message_store.clock import Clock

CREATES: Final = frozenset(
    {RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP}
)
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
# Apache's thread pools, by the requests that they serve. BrokerController.registerProcessor
PROCESSORS: Final[Mapping[str, frozenset[int]]] = {
    "pull": frozenset({RequestCode.PULL_MESSAGE}),
    "lite_pull": frozenset({RequestCode.LITE_PULL_MESSAGE}),
    "query_message": frozenset({RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}),
    "heartbeat": frozenset({RequestCode.HEART_BEAT}),
    "transaction": frozenset({RequestCode.END_TRANSACTION}),
    "client_manager": frozenset({RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG}),
    "consumer_manager": frozenset(
        {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.QUERY_CONSUMER_OFFSET,
        }
    ),
    "reply": frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}),
    "send": frozenset({RequestCode.CONSUMER_SEND_MSG_BACK}),
}
TOOK_MS_MAX: Final = 60_000  # longer ones count as this
UNKNOWN: Final = "unknown"
_REQUEST_NAMES: Final = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES: Final = {int(code): code.name.lower() for code in ResponseCode}


class RpcMeter:
    """Latency of requests and requests in flight.

    Attributes:
        creates_ms: Milliseconds of creating topics and groups, by (success or failure), by code.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ms = Observations(RPC_BOUNDS_MS)
        self.creates_ms = {int(code): Observations(CREATE_BOUNDS_MS) for code in CREATES}
        self._put_latency = PutLatency()
        self._stored: dict[int, int] = {}  # ms to messages, not yet in the two above
        self._in_flight: Counter[int] = Counter()

    def sends(self, count: int, refused: int, since_ms: int) -> None:
        """Note a batch of sends.

        Args:
            count: Messages of the batch, `refused` of them not stored.
            since_ms: When the batch was received.
        """
        took_ms = self._clock.now_ms() - since_ms
        if not 0 <= took_ms <= TOOK_MS_MAX:
            took_ms = 0 if took_ms < 0 else TOOK_MS_MAX
        if count > refused:
            stored = self._stored
            stored[took_ms] = stored.get(took_ms, 0) + count - refused
        if refused:
            key = (RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_ERROR, False, False)
            self._ms.add(took_ms, *key, count=refused)

    def together(self, asked: int, code: int, count: int, since_ms: int) -> None:
        """Note requests of one code that one turn of the loop answers together.

        Args:
            asked: Request code.
            code: Response code.
            since_ms: When they were received.
        """
        took_ms = max(self._clock.now_ms() - since_ms, 0)
        self._ms.add(took_ms, asked, code, False, False, count=count)

    @property
    def ms(self) -> Observations:
        """Milliseconds, by (request code, response code, held for long polling, one-way)."""
        self._add_stored()
        return self._ms

    def put_figures(self) -> Mapping[str, str]:
        """Return the latency of stored messages, as runtime info (28) shows it."""
        self._add_stored()
        return self._put_latency.figures()

    def _add_stored(self) -> None:
        key = (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, False)
        stored, self._stored = self._stored, {}
        for took_ms, count in stored.items():
            self._ms.add(took_ms, *key, count=count)
            self._put_latency.add(took_ms, count)

    def in_flight(self) -> dict[str, int]:
        """Return the requests in flight, by Apache's name of their processor; 0 for none.

        Requests of no named processor count as `admin`.
        """
        named = {name: sum(self._in_flight[code] for code in codes)
                 for name, codes in PROCESSORS.items()}  # fmt: skip
        rest = sum(self._in_flight.values()) - sum(named.values())
        return {"async_put": 0, "ack": 0, **named, "admin": rest}

    def start(self) -> int:
        """Return the time at which a request begins, in ms."""
        return self._clock.now_ms()

    def wait(self, request: Request) -> None:
        """Count a request in flight."""
        self._in_flight[request.code] += 1

    def finish(self, request: Request, code: int, since_ms: int, *, waited: bool) -> None:
        """Record a request.

        Args:
            code: Response code; success if there was no response to send.
            since_ms: When the request began.
            waited: The request was in flight: `wait` counted it.
        """
        took_ms, asked = self._clock.now_ms() - since_ms, request.code
        self._in_flight[asked] -= waited
        self._ms.add(took_ms, asked, code, waited and asked in PULLS, request.oneway)
        if asked in CREATES:
            done = code == ResponseCode.SUCCESS
            self.creates_ms[asked].add(took_ms, "success" if done else "failure")

    @property
    def clock(self) -> Clock:
        """The clock that latencies are measured with."""
        return self._clock


def names_of(key: tuple[int, int, bool, bool]) -> tuple[str, str, str, str, str]:
    """Return a key of `RpcMeter.ms` as Apache's label values.

    They are request_code, response_code, is_long_polling, result and protocol_type.
    """
    code, answer, held, oneway = key
    return (
        _REQUEST_NAMES.get(code, UNKNOWN),
        _RESPONSE_NAMES.get(answer, UNKNOWN),
        "true" if held else "false",
        "oneway" if oneway else "success",
        "remoting",
    )
