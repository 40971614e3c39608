"""Apache's native series: names and labels as its exporter has them, values as they happened."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from delayed_delivery.steps import ROWS_PER_TURN
from duemq.broker.broker import Broker
from duemq.broker.collectors import native_metrics
from duemq.registry.clients import ConsumerGroup
from duemq_common.clock import FakeClock
from message_store.log.offset_id import decode_offset_id
from message_store.log.properties import encode_properties
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import BrokerClient, running, small
from tests.support.work_per_turn import WorkPerTurn

RECORDED = Path(__file__).parents[3] / "golden" / "metrics" / "apache-5.3.3.txt"
NAMES = RECORDED.with_name("apache-5.3.3-names.txt")  # those in Apache's source
SUFFIX = re.compile(
    r"(_milliseconds|_seconds|_bytes)?(_total|_bucket|_sum|_count)?$"
)  # of Prometheus: unit and kind
# Served since 5.3.3, but not seen in the recorded load.
UNSEEN = {
    "rocketmq_send_to_dlq_messages_total": {"consumer_group", "topic", "is_system"},
    "rocketmq_consumer_group_create_execution_time_milliseconds_count": {
        "invocation_status",
        "is_system",
    },
}
IN_POP = {"consumer_group", "topic", "put_status"}
UNSEEN |= {
    "rocketmq_pop_revive_in_message_total": IN_POP | {"revive_message_type"},
    "rocketmq_pop_revive_out_message_total": (IN_POP - {"put_status"})
    | {"queue_id", "revive_message_type"},
    "rocketmq_pop_revive_retry_messages_total": IN_POP,
}
BROKER_LABELS = {"cluster", "node_id", "node_type"}
SAMPLE = re.compile(r"^(rocketmq_\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def recorded() -> dict[str, set[str]]:
    """Return the label names of each recorded series."""
    lines = (line.split(" ") for line in RECORDED.read_text().splitlines())
    return {name: set(labels.split(",")) for name, labels in lines}


def parse(text: str) -> list[tuple[str, dict[str, str], float]]:
    found = (SAMPLE.match(line) for line in text.splitlines())
    return [(m[1], dict(LABEL.findall(m[2])), float(m[3])) for m in found if m]


async def read_page(port: int | None, query: str = "") -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics{query}") as page:
            text: str = page.read().decode()
            return text

    return await asyncio.to_thread(read)


async def scrape(port: int | None) -> list[tuple[str, dict[str, str], float]]:
    return parse(await read_page(port))


def value(
    samples: list[tuple[str, dict[str, str], float]], name: str, **labels: str
) -> float | None:
    """Return the one sample with these labels."""
    found = [v for n, had, v in samples if n == name and labels.items() <= had.items()]
    assert len(found) < 2, (name, labels, found)
    return found[0] if found else None


async def half(remote: BrokerClient, key: str, verdict: int) -> None:
    sent = await remote.send("T", b"half", TRAN_MSG="true", PGROUP="p", UNIQ_KEY=key)
    end = {
        "producerGroup": "p",
        "commitLogOffset": decode_offset_id(str(sent.fields["msgId"]))[2],
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitOrRollback": verdict,
        "fromTransactionCheck": "false",
        "msgId": key,
        "transactionId": key,
    }
    assert (await remote.call(37, end)).code == 0


def heartbeat() -> bytes:
    topics = [
        {"topic": "T", "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []},
    ]
    consumer = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": topics,
        "unitMode": False,
    }
    producers = [{"groupName": "p"}]
    body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": producers}
    return json.dumps(body).encode()


async def dead_letter(remote: BrokerClient, body: bytes) -> None:
    """Send a message that was tried too often to its group's retry topic."""
    fields: Mapping[str, object] = {
        "producerGroup": "p",
        "topic": "%RETRY%g",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "properties": encode_properties({"DELAY": "3"}).decode(),
        "reconsumeTimes": 17,
        "unitMode": "false",
        "maxReconsumeTimes": 16,
    }
    assert (await remote.call(10, fields, body)).code == 0


async def load(remote: BrokerClient, clock: FakeClock) -> None:
    now_ms = clock.now_ms()
    assert (await remote.call(34, {}, heartbeat())).code == 0
    for _ in range(3):
        assert (await remote.send("T", b"plain", UNIQ_KEY="A")).code == 0
    assert (await remote.send("T", b"level", DELAY="1", UNIQ_KEY="B")).code == 0
    due_ms = str(now_ms + 90_000)
    assert (await remote.send("T", b"timer", TIMER_DELIVER_MS=due_ms, UNIQ_KEY="C")).code == 0
    assert (await remote.send("T", b"sharded", __SHARDINGKEY="s", UNIQ_KEY="D")).code == 0
    await half(remote, "E", 8)
    await half(remote, "F", 12)
    assert (await remote.pull("T", 0)).code == 0
    await remote.call(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 2})
    await remote.call(200, {}, json.dumps({"groupName": "g2"}).encode())
    topic = {"topic": "U", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1}
    topic |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert (await remote.call(17, topic)).code == 0
    await dead_letter(remote, b"dead")


async def pops(broker: Broker, remote: BrokerClient, clock: FakeClock) -> None:
    """Pop 4 messages: one is acknowledged, two are visible again, the time of one is changed."""
    client = PopClient(remote, clock, "popping")
    for _ in range(5):
        assert (await remote.send("P", b"popped")).code == 0
    first, second, *_ = await client.pop("P", maxMsgNums=4, invisibleTime=10_000)
    assert (await client.ack(first)).code == 0
    assert (await client.change(second, 60_000)).code == 0
    await advance(broker, clock, 10_100)


@pytest.fixture(scope="module")
def samples(
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[str, dict[str, str], float]]:
    """The series of a broker after some work of every kind, 1 s later."""
    root = tmp_path_factory.mktemp("broker")
    properties = small(root, metricsExporterType="PROM", metricsPromExporterPort="0")
    properties |= {"brokerClusterName": "C", "timerWheelEnable": "true"}

    async def main() -> list[tuple[str, dict[str, str], float]]:
        clock = FakeClock()
        async with running(properties, clock=clock) as (broker, remote):
            await pops(broker, remote, clock)
            await load(remote, clock)
            clock.advance(1_000)
            assert (await remote.pull("T", 5)).code == 0  # held until the level is delivered
            return await scrape(broker.metrics_port)

    return asyncio.run(main())


def test_a_scrape_of_some_names_has_these_series(tmp_path: Path) -> None:
    properties = small(tmp_path, metricsExporterType="PROM", metricsPromExporterPort="0")

    async def main() -> str:
        async with running(properties) as (broker, _):
            query = "?name[]=duemq_up&name[]=rocketmq_broker_permission&name[]=none"
            return await read_page(broker.metrics_port, query)

    series = [line for line in asyncio.run(main()).splitlines() if not line.startswith("#")]
    [up, permission] = sorted(series)
    assert up == "duemq_up 1.0"
    assert permission.startswith('rocketmq_broker_permission{cluster="DefaultCluster",')


def test_a_lag_has_no_age_after_the_time_for_ages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units of thousands of queues with a lag cannot be read within the time of a scrape."""
    monkeypatch.setattr(native_metrics, "AGES_MS", 0)
    properties = small(tmp_path, metricsExporterType="PROM", metricsPromExporterPort="0")
    lag, age = "rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency_milliseconds"
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}

    async def main() -> None:
        async with running(properties, clock=FakeClock()) as (broker, remote):
            assert (await remote.call(34, {}, heartbeat())).code == 0
            assert (await remote.send("T", b"plain")).code == 0
            await remote.call(15, commit)
            assert value(await scrape(broker.metrics_port), age, consumer_group="g") == 0
            assert (await remote.send("T", b"plain")).code == 0
            samples = await scrape(broker.metrics_port)
            assert value(samples, lag, consumer_group="g") == 1
            assert value(samples, age, consumer_group="g") is None

    asyncio.run(main())


@pytest.mark.finding("D4")
def test_every_series_of_apache_is_served_with_its_labels(
    samples: list[tuple[str, dict[str, str], float]],
) -> None:
    served: dict[str, set[str]] = {}
    for name, labels, _ in samples:
        served.setdefault(name, set()).update(labels)
    wanted = recorded() | {name: own | BROKER_LABELS for name, own in UNSEEN.items()}
    missing = {name: labels - served.get(name, set()) for name, labels in wanted.items()}
    # DueMQ gives a timer no dequeue counter before the first one is delivered.
    missing.pop("rocketmq_timer_dequeue_total")
    assert {name: labels for name, labels in missing.items() if labels} == {}


def test_every_name_in_apaches_source_is_served_apart_from_those_of_rocksdb(
    samples: list[tuple[str, dict[str, str], float]],
) -> None:
    served = {SUFFIX.sub("", name) for name, _, _ in samples}
    wanted = {SUFFIX.sub("", name): name for name in NAMES.read_text().split()}
    absent = {name for base, name in wanted.items() if base not in served}
    assert {name for name in absent if "_rocksdb_" not in name} == set()
    assert len(absent) == 8


@pytest.mark.parametrize(
    ("name", "labels", "wanted"),
    [
        ("messages_in_total", {"topic": "T", "message_type": "normal"}, 3),
        ("messages_in_total", {"topic": "T", "message_type": "fifo"}, 1),
        ("messages_in_total", {"topic": "T", "message_type": "delay", "is_system": "false"}, 1),
        ("messages_in_total", {"topic": "SCHEDULE_TOPIC_XXXX", "is_system": "true"}, 1),
        ("messages_in_total", {"topic": "rmq_sys_wheel_timer", "message_type": "delay"}, 5),
        ("messages_in_total", {"topic": "T", "message_type": "transaction"}, 1),
        ("message_size_count", {"topic": "T", "message_type": "normal"}, 3),
        ("message_size_bucket", {"topic": "T", "message_type": "normal", "le": "1024.0"}, 3),
        ("messages_out_total", {"topic": "T", "consumer_group": "g", "is_system": "false"}, 6),
        ("send_to_dlq_messages_total", {"topic": "%DLQ%g", "consumer_group": "g"}, 1),
        ("commit_messages_total", {"topic": "T"}, 1),
        ("rollback_messages_total", {"topic": "T"}, 1),
        ("half_messages", {}, 0),
        ("delay_message_latency_seconds_bucket", {"topic": "T", "le": "600.0"}, 0),
        ("timer_enqueue_total", {"topic": "T", "storage_type": "local"}, 1),
        ("timing_messages", {"topic": "T", "storage_medium": "disk"}, 1),
        ("consumer_lag_messages", {"consumer_group": "g", "topic": "T"}, 4),
        ("consumer_lag_latency_milliseconds", {"consumer_group": "g", "topic": "T"}, 1_000),
        ("consumer_inflight_messages", {"consumer_group": "g", "topic": "T"}, 4),
        ("consumer_ready_messages", {"consumer_group": "g", "topic": "T"}, 0),
        ("consumer_connections", {"consumer_group": "g", "consume_mode": "push"}, 1),
        ("producer_connections", {"version": "v5_3_3", "protocol_type": "remoting"}, 1),
        ("rpc_latency_milliseconds_count", {"request_code": "send_message_v2"}, 14),
        ("rpc_latency_milliseconds_count", {"request_code": "heart_beat"}, 1),
        ("topic_create_execution_time_milliseconds_count", {"invocation_status": "success"}, 1),
        ("consumer_inflight_messages", {"consumer_group": "popping", "is_retry": "false"}, 1),
        ("consumer_lag_messages", {"consumer_group": "popping", "is_retry": "false"}, 2),
        ("consumer_ready_messages", {"consumer_group": "popping", "is_retry": "false"}, 1),
        ("consumer_inflight_messages", {"consumer_group": "popping", "is_retry": "true"}, 0),
        ("consumer_ready_messages", {"consumer_group": "popping", "is_retry": "true"}, 2),
        ("pop_revive_in_message_total", {"topic": "P", "revive_message_type": "CK"}, 2),
        ("pop_revive_in_message_total", {"topic": "P", "revive_message_type": "ACK"}, 2),
        ("pop_revive_out_message_total", {"topic": "P", "revive_message_type": "CK"}, 1),
        ("pop_revive_out_message_total", {"topic": "P", "revive_message_type": "ACK"}, 2),
        ("pop_revive_retry_messages_total", {"topic": "P", "put_status": "PUT_OK"}, 2),
        ("pop_revive_lag_milliseconds", {"queue_id": "1"}, 0),
        ("pop_offset_buffer_size", {}, 0),
        ("broker_permission", {"cluster": "C", "node_id": "test", "node_type": "broker"}, 6),
    ],
)
def test_values(
    samples: list[tuple[str, dict[str, str], float]],
    name: str,
    labels: dict[str, str],
    wanted: float,
) -> None:
    assert value(samples, f"rocketmq_{name}", **labels) == wanted


class TopicNames:
    """Topics of a store."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"topic-{index}"


def test_a_turn_reads_a_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4 * ROWS_PER_TURN
    traffic = np.ones((count, 1, 3), np.int64)
    parts: Any = SimpleNamespace(
        store=SimpleNamespace(topics=TopicNames(count)), stats=SimpleNamespace(traffic=traffic)
    )
    work = WorkPerTurn(monkeypatch, TopicNames, "name")
    names, counts = asyncio.run(work.during(native_metrics.stored_messages(parts)))
    assert (len(names), counts.shape) == (count, (count, 3))
    assert (work.most, work.total) == (ROWS_PER_TURN, count)


def test_a_turn_reads_the_members_of_a_limited_number_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 4 * ROWS_PER_TURN
    channel: Any = SimpleNamespace(language="JAVA", version=0)
    channels: Any = {"connection": channel}
    groups = [
        ConsumerGroup(f"g{number}", "CONSUME_POP", "CLUSTERING", "", channels)
        for number in range(count)
    ]
    clients: Any = SimpleNamespace(
        producer_groups=lambda: [("p", [channel, channel])], consumer_groups=lambda: iter(groups)
    )
    work = WorkPerTurn(monkeypatch, native_metrics, "version_name")
    producers, consumers = asyncio.run(work.during(native_metrics.connections(clients)))
    assert [sample.value for sample in producers.samples] == [2]
    assert [sample.value for sample in consumers.samples] == [1] * count
    assert work.most <= ROWS_PER_TURN + 2
