from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.admin.runtime_info import RuntimeInfo, run_time
from duemq.configuration.config import BrokerConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.put_latency import PutLatency
from duemq_common.request import Request
from message_store.store import MessageStore
from tests.support.stores import open_store, put_one

GOLDEN_TEXT = """
msgPutTotalTodayNow scheduleMessageOffset_1 brokerActive sendThreadPoolQueueHeadWaitTimeMills
putMessageDistributeTime queryThreadPoolQueueHeadWaitTimeMills remainHowManyDataToFlush
msgGetTotalTodayNow timerEnqueueTps queryThreadPoolQueueSize timerOffsetBehind bootTimestamp
msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning pullThreadPoolQueueSize
commitLogMinOffset pullThreadPoolQueueHeadWaitTimeMills runtime dispatchMaxBuffer brokerVersion
putTps getTransferredTps getMissTps litePullThreadPoolQueueHeadWaitTimeMills
EndTransactionQueueSize getTotalTps consumeQueueDiskRatio litePullThreadPoolQueueSize
pageCacheLockTimeMills ackThreadPoolQueueSize commitLogDiskRatio getFoundTps
EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills putMessageFailedTimes
putLatency999 timerReadBehind commitLogMaxOffset getMessageEntireTimeMax msgPutTotalTodayMorning
putMessageTimesTotal putLatency99 msgGetTotalTodayMorning brokerVersionDesc
startAcceptSendRequestTimeStamp sendThreadPoolQueueSize putMessageEntireTimeMax
earliestMessageTimeStamp commitLogDirCapacity timerCongestNum remainTransientStoreBufferNumbs
ackThreadPoolQueueCapacity queryThreadPoolQueueCapacity putMessageAverageSize
dispatchBehindBytes putMessageSizeTotal sendThreadPoolQueueCapacity timerDequeueTps
pullThreadPoolQueueCapacity litePullThreadPoolQueueCapacity
"""


@pytest.fixture
def rig(
    tmp_path: Path,
) -> Iterator[tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]]]:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        stats = BrokerStats(store.topics)
        store.add_dispatcher(stats.on_append)
        info = RuntimeInfo(
            store,
            stats,
            BrokerConfig,
            clock,
            started_ms=clock.now_ms(),
            figures=[lambda: {"scheduleMessageOffset_1": "2,2"}, PutLatency().figures],
        )
        yield store, stats, clock, info.handlers()  # type: ignore[misc]


def test_28_has_every_key_of_apache_and_all_values_are_text(
    run: Callable[..., Any],
    rig: tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]],
) -> None:
    store, _, clock, handlers = rig
    put_one(store, "T")
    clock.advance(3_723_000)
    table = json.loads(run(handlers[28](Request(28, {}))).body)["table"]
    assert not set(GOLDEN_TEXT.split()) - table.keys()
    assert any(key.startswith("commitLogDiskRatio_/") for key in table)
    assert all(isinstance(value, str) for value in table.values())
    assert table["getTransferedTps"] == table["getTransferredTps"] == "0.0 0.0 0.0"
    assert table["runtime"] == "[ 0 days, 1 hours, 2 minutes, 3 seconds ]"
    assert table["msgPutTotalTodayNow"] == "1"
    assert int(table["earliestMessageTimeStamp"]) == clock.now_ms() - 3_723_000
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1


def test_an_empty_store_has_numbers_too(
    run: Callable[..., Any],
    rig: tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]],
) -> None:
    table = json.loads(run(rig[3][28](Request(28, {}))).body)["table"]
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["putMessageAverageSize"] == "0.0"


def test_315_answers_windows_or_1(
    run: Callable[..., Any],
    rig: tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]],
) -> None:
    store, stats, clock, handlers = rig
    stats.sample(clock.now_ms())
    for _ in range(7):
        put_one(store, "T")
    clock.advance(10_000)
    stats.sample(clock.now_ms())
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    body = json.loads(run(handlers[315](Request(315, fields))).body)
    assert body["statsMinute"] == {"avgpt": 1.0, "sum": 7, "tps": 0.7}
    assert body.keys() == {"statsDay", "statsHour", "statsMinute"}
    assert run(handlers[315](Request(315, fields | {"statsKey": "U"}))).code == 1


@pytest.mark.parametrize("code", [306, 316, 329])
def test_cleaning_is_answered(
    run: Callable[..., Any],
    rig: tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]],
    code: int,
) -> None:
    assert run(rig[3][code](Request(code, {}))).code == 0


def test_this_master_has_no_replicas(
    run: Callable[..., Any],
    rig: tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]],
) -> None:
    body = json.loads(run(rig[3][907](Request(907, {}))).body)
    assert (body["master"], body["haConnectionInfo"]) == (True, [])


def test_run_time_never_runs_backwards() -> None:
    assert run_time(-5) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"


WHOLE = """
msgPutTotalTodayNow sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills
msgGetTotalTodayNow queryThreadPoolQueueSize bootTimestamp msgPutTotalYesterdayMorning
msgGetTotalYesterdayMorning pullThreadPoolQueueSize commitLogMinOffset
pullThreadPoolQueueHeadWaitTimeMills dispatchMaxBuffer brokerVersion pageCacheLockTimeMills
commitLogMaxOffset getMessageEntireTimeMax msgPutTotalTodayMorning putMessageTimesTotal
msgGetTotalTodayMorning sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
putMessageEntireTimeMax earliestMessageTimeStamp remainTransientStoreBufferNumbs
queryThreadPoolQueueCapacity dispatchBehindBytes putMessageSizeTotal sendThreadPoolQueueCapacity
pullThreadPoolQueueCapacity
"""
DECIMAL = (
    "consumeQueueDiskRatio commitLogDiskRatio putMessageAverageSize putLatency99 putLatency999"
)


def test_the_exporter_can_parse_every_value(
    run: Callable[..., Any],
    rig: tuple[MessageStore, BrokerStats, FakeClock, dict[RequestCode, Callable[..., Any]]],
) -> None:
    """Source: BrokerRuntimeStats of rocketmq-exporter."""
    store, stats, clock, handlers = rig
    put_one(store, "T")
    stats.sample(clock.now_ms())
    table = json.loads(run(handlers[28](Request(28, {}))).body)["table"]
    for name in WHOLE.split():
        int(table[name])
    for name in DECIMAL.split():
        float(table[name])
    for name in ("putTps", "getMissTps", "getTransferredTps", "getTotalTps", "getFoundTps"):
        assert len([float(part) for part in table[name].split(" ")]) == 3
    float(table["remainHowManyDataToFlush"].split(" ")[0])
    words = table["commitLogDirCapacity"].split(" ")
    assert (words[0], words[3][1:], words[4], words[7][1:]) == ("Total", "iB,", "Free", "iB.")
    float(words[2])
    float(words[6])
    for part in table["putMessageDistributeTime"].split():
        int(part.split(":")[1])
    offsets = [text for key, text in table.items() if key.startswith("scheduleMessageOffset")]
    assert [len([int(part) for part in text.split(",")]) for text in offsets] == [2]
