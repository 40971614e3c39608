"""Apache's native metrics: series of 5.3.3's Prometheus exporter, with its names and labels.

Values are read at each scrape on the event loop's thread, in bounded steps; the thread that serves
/metrics makes the families, because thousands of topics have 100,000 series. Plugins such as the
timer store collect their own series; `NativeRegistry` adds the common labels. docs/compat.md lists
the differences from Apache.

Source: BrokerMetricsManager, DefaultStoreMetricsManager, ConsumerLagCalculator,
PopMetricsManager
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from delayed_delivery.steps import collected, in_turns
from duemq.broker.collectors.consumer_lag import GroupLag, group_lags, is_system_group
from duemq.metrics.kernels import (
    DELAY,
    DELAY_BOUNDS_S,
    FIFO,
    NORMAL,
    PRIORITY,
    SIZE_BOUNDS,
    TRANSACTION,
)
from duemq.metrics.loop_collector import read_on
from duemq.metrics.series import COUNTER, GAUGE, HISTOGRAM, SeriesLabels, SeriesTable
from duemq.net.meters import (
    CREATE_BOUNDS_MS,
    Labels,
    Observations,
    RpcMeter,
    cumulative,
    names_of,
)
from duemq.pop.names import REVIVE_QUEUES
from duemq.registry.versions import version_name
from duemq.transactions.meters import Meters
from duemq_common.codes import RequestCode
from duemq_common.topics import DLQ_PREFIX, HALF_TOPIC

if TYPE_CHECKING:
    from duemq.broker.collectors.running_broker import RunningBroker
    from duemq.broker.components import BrokerComponents
    from duemq.pop.service import PopService
    from duemq.registry.clients import ClientTable, ConsumerGroup


PREFIX: Final = "rocketmq_"
AGES_MS: Final = 5_000  # for the ages of lags, half of the time of a scrape
DELAY_BUCKETS_S: Final = tuple(DELAY_BOUNDS_S.tolist())
TYPE_NAMES: Final = {
    NORMAL: "normal",
    FIFO: "fifo",
    DELAY: "delay",
    TRANSACTION: "transaction",
    PRIORITY: "priority",
}
MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
MEMBER_LABELS: Final = (
    "consumer_group",
    "language",
    "version",
    "consume_mode",
    "protocol_type",
    "is_system",
)

Rows = Iterable[tuple[Sequence[str], float]]
FamilyMaker = Callable[[], Iterable[Metric]]
"""Makes families from values that were read; called in any thread."""


class NativeCollector:
    """Collector of Apache's native metrics of a running broker."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker, self._parts = broker, broker.parts
        self._loop = asyncio.get_running_loop()

    def describe(self) -> list[Metric]:
        """Return nothing: registration must not read values."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families. Called in the thread that serves /metrics.

        Raises:
            TimeoutError: The event loop did not read the values in time.
        """
        for make in read_on(self._loop, self.read()):
            yield from make()

    async def read(self) -> list[FamilyMaker]:
        """Read all values; return the functions that make the families from them."""
        parts, clock = self._parts, self._broker.clock
        now_ms, ages_end_ms = clock.now_ms(), clock.steady_ms() + AGES_MS
        assert parts.pop is not None
        lags = await in_turns(group_lags(parts, now_ms, lambda: clock.steady_ms() < ages_end_ms))
        traffic = Traffic(
            stored=await stored_messages(parts),
            pulled=await collected(parts.stats.pulled()),
            delays=_delays(parts),
            is_system=parts.topics.is_system,
        )
        return [
            _made(self._broker_figures()),
            partial(_traffic, traffic),
            _made(await connections(parts.clients)),
            partial(_lags, lags),
            _made(_meters(parts.meters)),
            _made([_rpc_latency(parts.rpc)]),
            _made(_creates(parts.rpc)),
            _made(self._storage()),
            _made(_pop(parts.pop, now_ms)),
            partial(_pop_records, *_pop_rows(parts.pop)),
        ]

    # -- groups of families ---------------------------------------------------------------------

    def _broker_figures(self) -> Iterator[Metric]:
        parts = self._parts
        text = "Permission of clients (brokerPermission): 2 write, 4 read, 6 both."
        yield _gauge("broker_permission", text, [((), self._broker.config.permission)])
        yield _gauge("topic_number", "Topics.", [((), len(parts.topics))])
        yield _gauge("consumer_group_number", "Consumer groups.", [((), len(parts.groups))])
        in_flight = parts.rpc.in_flight()
        yield _gauge(
            "processor_watermark",
            "Requests in flight, by processor.",
            [((name,), count) for name, count in in_flight.items()],
            "processor",
        )
        assert parts.transactions is not None
        half = [((HALF_TOPIC,), parts.transactions.queue.open_count)]
        yield _gauge(
            "half_messages", "Half messages neither committed nor rolled back.", half, "topic"
        )

    def _storage(self) -> Iterator[Metric]:
        store = self._broker.store
        usage = shutil.disk_usage(store.root)
        unflushed = max(store.max_offset - store.durable_offset, 0)
        yield _gauge(
            "storage_size_bytes",
            "Used bytes of the store's disk.",
            [((), usage.total - usage.free)],
        )
        yield _gauge(
            "storage_flush_behind_bytes", "Bytes of the log not yet synced.", [((), unflushed)]
        )
        yield _gauge(
            "storage_dispatch_behind_bytes", "Bytes of the log not yet in queues.", [((), 0)]
        )  # queues are written with the log
        ages: list[tuple[tuple[str, ...], float]] = []
        if store.max_offset > store.min_offset:
            ages = [((), self._broker.clock.now_ms() - store.store_ms(store.min_offset))]
        yield _gauge(
            "storage_message_reserve_time_milliseconds", "Age of the oldest message.", ages
        )


class Traffic(Struct, frozen=True):
    """Messages by topic.

    Attributes:
        stored: Labels (topic, type); (n, ...) messages, bytes, and messages by size.
        pulled: Topic, group, messages and bytes.
        delays: Topics; (n, ...) sum of the requested delays in s, and timers by delay.
        is_system: Returns whether a topic is internal.
    """

    stored: tuple[Sequence[tuple[str, str]], npt.NDArray[np.int64]]
    pulled: Sequence[tuple[str, str, int, int]]
    delays: tuple[Sequence[str], npt.NDArray[np.int64]]
    is_system: Callable[[str], bool]


def _made(families: Iterable[Metric]) -> FamilyMaker:
    """Make a limited number of families now; return the function that returns them."""
    made = list(families)
    return lambda: made


def _traffic(traffic: Traffic) -> Iterator[Metric]:
    is_system = cache(traffic.is_system)
    yield from _stored_families(traffic, is_system)
    yield from _pulled_families(traffic, is_system)
    yield from _delay_families(traffic)


def _stored_families(traffic: Traffic, is_system: Callable[[str], bool]) -> Iterator[Metric]:
    topics, counts = traffic.stored
    rows = [(topic, kind, _text(is_system(topic))) for topic, kind in topics]
    labels = SeriesLabels(("topic", "message_type", "is_system"), rows)
    messages, sizes = counts[:, 0].tolist(), counts[:, 1].tolist()
    yield _table("messages_in", "Messages stored.", COUNTER, labels, messages)
    yield _table("throughput_in", "Bytes of stored messages.", COUNTER, labels, sizes)
    yield SeriesTable(
        PREFIX + "message_size",
        "Bytes of each stored message.",
        HISTOGRAM,
        labels,
        sizes,
        bounds=SIZE_BOUNDS.tolist(),
        counts=counts[:, 2:].tolist(),
    )
    dead = [
        ((topic, topic.removeprefix(DLQ_PREFIX), _text(is_system(topic))), float(count))
        for (topic, _), count in zip(topics, messages, strict=True)
        if topic.startswith(DLQ_PREFIX)
    ]
    text = "Messages in dead letter topics."
    names = ("topic", "consumer_group", "is_system")
    yield _counter("send_to_dlq_messages", text, dead, *names)


def _pulled_families(traffic: Traffic, is_system: Callable[[str], bool]) -> Iterator[Metric]:
    rows = [
        (topic, group, _text(is_system(topic) or is_system_group(group)))
        for topic, group, _, _ in traffic.pulled
    ]
    labels = SeriesLabels(("topic", "consumer_group", "is_system"), rows)
    messages = [count for _, _, count, _ in traffic.pulled]
    sizes = [size for _, _, _, size in traffic.pulled]
    yield _table("messages_out", "Messages read by consumers.", COUNTER, labels, messages)
    text = "Bytes of messages read by consumers."
    yield _table("throughput_out", text, COUNTER, labels, sizes)


def _delay_families(traffic: Traffic) -> Iterator[Metric]:
    topics, counts = traffic.delays
    labels = SeriesLabels(("topic",), [(topic,) for topic in topics])
    yield SeriesTable(
        PREFIX + "delay_message_latency_seconds",
        "Requested delays of timers.",
        HISTOGRAM,
        labels,
        counts[:, 0].tolist(),
        bounds=DELAY_BUCKETS_S,
        counts=counts[:, 1:].tolist(),
    )
    timers = counts[:, 1:].sum(axis=1).tolist()
    yield _table("timer_enqueue", "Timers stored.", COUNTER, labels, timers)


async def stored_messages(
    parts: BrokerComponents,
) -> tuple[list[tuple[str, str]], npt.NDArray[np.int64]]:
    """Return `Traffic.stored`, read in steps."""
    table, traffic = parts.store.topics, parts.stats.traffic
    topics, kinds = np.nonzero(traffic[: len(table), :, 0])
    counts = traffic[topics, kinds]
    rows = zip(topics.tolist(), kinds.tolist(), strict=True)
    return await collected((table.name(topic), TYPE_NAMES[kind]) for topic, kind in rows), counts


def _delays(parts: BrokerComponents) -> tuple[list[str], npt.NDArray[np.int64]]:
    table, delays = parts.store.topics, parts.stats.delays
    topics = np.flatnonzero(delays[: len(table), 1:].any(axis=1))
    return [table.name(topic) for topic in topics.tolist()], delays[topics]


def _text(value: bool) -> str:
    return "true" if value else "false"


async def connections(clients: ClientTable) -> list[Metric]:
    """Return the families of connected clients, read in steps."""
    producers = Counter[tuple[str, ...]]()
    for _, channels in clients.producer_groups():
        for channel in channels:
            producers[channel.language.lower(), version_name(channel.version), "remoting"] += 1
    consumers = Counter[tuple[str, ...]]()
    for members in await collected(map(_members, list(clients.consumer_groups()))):
        consumers.update(members)
    text = "Connections of producers."
    names = ("language", "version", "protocol_type")
    family = _gauge("producer_connections", text, producers.items(), *names)
    labels = SeriesLabels(MEMBER_LABELS, list(consumers))
    counts = list(consumers.values())
    text = "Connections of consumers."
    return [family, _table("consumer_connections", text, GAUGE, labels, counts)]


def _members(group: ConsumerGroup) -> list[tuple[str, ...]]:
    """Return the labels of each connection of a group."""
    system = _text(is_system_group(group.name))
    mode = MODES.get(group.consume_type, group.consume_type.lower())
    return [
        (
            group.name,
            channel.language.lower(),
            version_name(channel.version),
            mode,
            "remoting",
            system,
        )
        for channel in group.channels.values()
    ]


def _lags(lags: Sequence[GroupLag]) -> Iterator[Metric]:
    yield from _lag_tables(
        lags,
        {
            "lag_messages": "Messages not yet consumed.",
            "inflight_messages": "Messages pulled or popped, and not yet consumed.",
            "ready_messages": "Messages not yet pulled.",
        },
    )
    yield from _lag_tables(
        [lag for lag in lags if lag.has_ages],
        {
            "lag_latency_milliseconds": "Age of the first message not yet consumed.",
            "queueing_latency_milliseconds": "Age of the first message not yet pulled.",
        },
    )


def _lag_tables(lags: Sequence[GroupLag], texts: Mapping[str, str]) -> Iterator[Metric]:
    rows = [(lag.group, lag.topic, _text(lag.retry), _text(lag.system)) for lag in lags]
    labels = SeriesLabels(("consumer_group", "topic", "is_retry", "is_system"), rows)
    for name, text in texts.items():
        value = attrgetter(name.removesuffix("_milliseconds"))
        yield _table(f"consumer_{name}", text, GAUGE, labels, list(map(value, lags)))


def _meters(meters: Meters) -> Iterator[Metric]:
    yield _counter("commit_messages", "Committed half messages.", meters.commits, "topic")
    yield _counter("rollback_messages", "Rolled back half messages.", meters.rollbacks, "topic")
    yield _histogram_family(
        "finish_message_latency_milliseconds",
        "Seconds (as in Apache, despite the name) from birth to commit.",
        meters.commit_s,
        "topic",
    )


def _rpc_latency(rpc: RpcMeter) -> Metric:
    names = ("request_code", "response_code", "is_long_polling", "result", "protocol_type")
    text = "Time from a request to its response."
    family = HistogramMetricFamily(PREFIX + "rpc_latency_milliseconds", text, labels=names)
    for key, buckets, total in rpc.ms:
        family.add_metric(names_of(key), buckets, total)
    return family


def _creates(rpc: RpcMeter) -> Iterator[Metric]:
    names = {
        RequestCode.UPDATE_AND_CREATE_TOPIC: ("topic_create_execution_time", "topic"),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
            "consumer_group_create_execution_time",
            "consumer group",
        ),
    }
    for code, (name, kind) in names.items():
        family = HistogramMetricFamily(
            f"{PREFIX}{name}_milliseconds",
            f"Time of a request that creates or changes a {kind}.",
            labels=["invocation_status", "is_system"],
        )
        for (status,), buckets, total in rpc.creates_ms[code]:
            family.add_metric([status, "false"], buckets, total)
        yield family


def _pop(pop: PopService, now_ms: int) -> Iterator[Metric]:
    """Yield the series of POP; checkpoints go directly into the log, so buffers are empty."""
    lags = [(str(queue), *pop.reviver.lag(queue, now_ms)) for queue in range(REVIVE_QUEUES)]
    yield _gauge(
        "pop_revive_lag_milliseconds",
        "Records (as in Apache, despite the name) of the revive topic not yet decided.",
        [((queue,), records) for queue, records, _ in lags],
        "queue_id",
    )
    yield _gauge(
        "pop_revive_latency_milliseconds",
        "Time since the first undecided checkpoint was due.",
        [((queue,), late_ms) for queue, _, late_ms in lags],
        "queue_id",
    )
    text = "Offsets of pops that disk and replicas have not confirmed."
    yield _gauge("pop_offset_buffer_size", text, [((), len(pop.offsets))])
    yield _gauge("pop_checkpoint_buffer_size", "Buffered checkpoints of POP; always 0.", [((), 0)])
    scans = HistogramMetricFamily(
        PREFIX + "pop_buffer_scan_time_consume_milliseconds",
        "Time of buffer scans of POP; always 0.",
        labels=[],
    )
    scans.add_metric([], cumulative(CREATE_BOUNDS_MS, [0] * 6), 0)
    yield scans


def _pop_rows(pop: PopService) -> list[list[tuple[Labels, int]]]:
    figures = pop.figures
    return [list(each) for each in (figures.puts, figures.reads, figures.retries)]


def _pop_records(puts: Rows, reads: Rows, retries: Rows) -> Iterator[Metric]:
    names = ("consumer_group", "topic")
    yield _counter(
        "pop_revive_in_message",
        "Records put into the revive topic.",
        puts,
        *names,
        "revive_message_type",
        "put_status",
    )
    yield _counter(
        "pop_revive_out_message",
        "Records read from the revive topic.",
        reads,
        *names,
        "queue_id",
        "revive_message_type",
    )
    yield _counter(
        "pop_revive_retry_messages",
        "Messages that are visible again.",
        retries,
        *names,
        "put_status",
    )


# -- families -----------------------------------------------------------------------------------


def _table(
    name: str, text: str, kind: str, labels: SeriesLabels, values: Sequence[float]
) -> SeriesTable:
    return SeriesTable(PREFIX + name, text, kind, labels, values)


def _gauge(name: str, text: str, rows: Rows, *labels: str) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, rows: Rows, *labels: str) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram_family(name: str, text: str, observed: Observations, *labels: str) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for values, buckets, total in observed:
        family.add_metric(values, buckets, total)
    return family
