"""Meters of requests: counters and histograms by label values, and the latency of requests.

The dispatcher reports every request to the `RpcMeter`, except sends, which `RpcMeter.sends` counts
by batch. Clients choose the label values of counters and histograms, so the number of keys is
bounded; beyond the bound, values are counted under a key of empty labels.

Source: NettyRemotingAbstract.processRequestCommand, RemotingMetricsManager
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.put_latency import PutLatency
from duemq_common.request import Request

KEYS_MAX: Final = 10_000
CREATE_BOUNDS_MS: Final = (10, 100, 1_000, 3_000, 5_000)
RPC_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
CREATES: Final = frozenset(
    {RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP}
)
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
# Requests by Apache's thread pool, from BrokerController.registerProcessor
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
LATENCY_MS_MAX: Final = 60_000  # longer latencies are recorded as this value
UNKNOWN: Final = "unknown"
_REQUEST_NAMES: Final = {int(code): code.name.lower() for code in RequestCode}
_RESPONSE_NAMES: Final = {int(code): code.name.lower() for code in ResponseCode}

Labels = tuple[Any, ...]
Buckets = list[tuple[str, float]]


class Counts:
    """Counter by label values."""

    def __init__(self) -> None:
        self._counts: dict[Labels, int] = {}

    def add(self, *labels: object, count: int = 1) -> None:
        """Add to the counter of these label values."""
        key = _limited_key(self._counts, labels)
        self._counts[key] = self._counts.get(key, 0) + count

    def __iter__(self) -> Iterator[tuple[Labels, int]]:
        return iter(list(self._counts.items()))


class Observations:
    """Histogram by label values.

    Args:
        bounds: Upper bounds of the buckets, ascending, without infinity.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts: dict[Labels, list[float]] = {}  # one count per bucket, then the sum

    def add(self, value: float, *labels: object, count: int = 1) -> None:
        """Add `count` observations of one value."""
        counts = self._counts.get(labels)
        if counts is None:
            key = _limited_key(self._counts, labels)
            counts = self._counts.setdefault(key, [0.0] * (len(self._bounds) + 2))
        counts[bisect_left(self._bounds, value)] += count
        counts[-1] += value * count

    def __iter__(self) -> Iterator[tuple[Labels, Buckets, float]]:
        """Yield label values, cumulative buckets in prometheus-client's form, and the sum."""
        for labels, counts in list(self._counts.items()):
            yield labels, cumulative(self._bounds, counts[:-1]), counts[-1]


def cumulative(bounds: Sequence[float], counts: Sequence[float]) -> Buckets:
    """Return the cumulative buckets of a histogram.

    Args:
        counts: One count for each bound, then one for values above the last.
    """
    buckets, total = [], 0.0
    for bound, count in zip((*map(float, bounds), float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets


def _limited_key(keys: Mapping[Labels, object], labels: Labels) -> Labels:
    if labels in keys or len(keys) < KEYS_MAX:
        return labels
    return ("",) * len(labels)


class RpcMeter:
    """Latency of requests and requests in flight.

    Attributes:
        creates_ms: Time in ms to create topics and groups, by code and "success" or "failure".
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ms = Observations(RPC_BOUNDS_MS)
        self.creates_ms = {int(code): Observations(CREATE_BOUNDS_MS) for code in CREATES}
        self._put_latency = PutLatency()
        self._stored: dict[int, int] = {}  # messages by latency in ms, not yet added
        self._in_flight: Counter[int] = Counter()

    def sends(self, count: int, refused: int, since_ms: int) -> None:
        """Record a batch of sends.

        Args:
            count: Messages of the batch, including refused ones.
            refused: Messages that were not stored.
            since_ms: Time of receipt in milliseconds since 1970.
        """
        latency_ms = self._clock.now_ms() - since_ms
        if not 0 <= latency_ms <= LATENCY_MS_MAX:
            latency_ms = 0 if latency_ms < 0 else LATENCY_MS_MAX
        if count > refused:
            stored = self._stored
            stored[latency_ms] = stored.get(latency_ms, 0) + count - refused
        if refused:
            key = (RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_ERROR, False, False)
            self._ms.add(latency_ms, *key, count=refused)

    def together(
        self, request_code: int, code: int, count: int, since_ms: int, *, oneway: bool = False
    ) -> None:
        """Record requests of one code that are handled together.

        Args:
            request_code: Request code.
            code: Response code.
            count: Number of requests.
            since_ms: Time of receipt in milliseconds since 1970.
        """
        latency_ms = max(self._clock.now_ms() - since_ms, 0)
        self._ms.add(latency_ms, request_code, code, False, oneway, count=count)

    @property
    def ms(self) -> Observations:
        """Latency in milliseconds, by (request code, response code, long polling, one-way)."""
        self._add_stored()
        return self._ms

    def put_figures(self) -> Mapping[str, str]:
        """Return the latency of stored messages in the format of runtime info (28)."""
        self._add_stored()
        return self._put_latency.figures()

    def _add_stored(self) -> None:
        key = (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, False)
        stored, self._stored = self._stored, {}
        for latency_ms, count in stored.items():
            self._ms.add(latency_ms, *key, count=count)
            self._put_latency.add(latency_ms, count)

    def in_flight(self) -> dict[str, int]:
        """Return the requests in flight by Apache's processor name; `admin` is the rest."""
        named = {
            name: sum(self._in_flight[code] for code in codes) for name, codes in PROCESSORS.items()
        }
        rest = sum(self._in_flight.values()) - sum(named.values())
        return {"async_put": 0, "ack": 0, **named, "admin": rest}

    def start(self) -> int:
        """Return the start time of a request, in milliseconds since 1970."""
        return self._clock.now_ms()

    def wait(self, request: Request) -> None:
        """Count a request in flight."""
        self._in_flight[request.code] += 1

    def finish(self, request: Request, code: int, since_ms: int, *, waited: bool) -> None:
        """Record a request.

        Args:
            code: Response code; success if there is no response.
            since_ms: Result of `start`.
            waited: Whether `wait` was called for the request.
        """
        latency_ms, request_code = self._clock.now_ms() - since_ms, request.code
        self._in_flight[request_code] -= waited
        self._ms.add(
            latency_ms, request_code, code, waited and request_code in PULLS, request.oneway
        )
        if request_code in CREATES:
            done = code == ResponseCode.SUCCESS
            self.creates_ms[request_code].add(latency_ms, "success" if done else "failure")

    @property
    def clock(self) -> Clock:
        """Clock of the latencies."""
        return self._clock


def names_of(key: tuple[int, int, bool, bool]) -> tuple[str, str, str, str, str]:
    """Return Apache's label values for a key of `RpcMeter.ms`.

    The labels are request_code, response_code, is_long_polling, result and protocol_type.
    """
    code, response, held, oneway = key
    return (
        _REQUEST_NAMES.get(code, UNKNOWN),
        _RESPONSE_NAMES.get(response, UNKNOWN),
        "true" if held else "false",
        "oneway" if oneway else "success",
        "remoting",
    )
