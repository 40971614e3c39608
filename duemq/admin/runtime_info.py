"""Runtime info (28), statistics (315), replication status (907), clean-up (306, 316, 329).

Source: AdminBrokerProcessor.prepareRuntimeInfo, BrokerStatsManager
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from duemq.configuration.config import BrokerConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.wire_json import encode
from duemq.replication.ha_client import HaClient, HaState
from duemq.replication.ha_server import HaServer
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.existence import exists
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.text import binary_size

if TYPE_CHECKING:
    from message_store.store import MessageStore

VERSION, VERSION_NAME = 479, "V5_3_3"
CAPACITIES = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}

Figures = Callable[[], Mapping[str, str]]


class RuntimeInfo:
    """Handler of codes 28, 306, 315, 316, 329 and 907.

    Args:
        figures: Return entries of runtime info that plugins add or replace.
        started_ms: Start time of this broker in ms since the epoch.
    """

    def __init__(
        self,
        store: MessageStore,
        stats: BrokerStats,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        *,
        started_ms: int,
        figures: Sequence[Figures] = (),
        ha_client: HaClient | None = None,
        ha_server: HaServer | None = None,
    ) -> None:
        self._ha_client, self._ha_server = ha_client, ha_server
        self._store, self._stats, self._config = store, stats, config
        self._clock, self._started_ms, self._figures = clock, started_ms, figures

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.statistics,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean,
        }

    async def runtime_info(self, request: Request) -> Response:
        """Return all entries of runtime info."""
        table = {**self._broker(), **self._disk(), **self._traffic(), **_queues_and_timers()}
        for figures in self._figures:
            table |= figures()
        return Response(body=encode({"table": table}))

    async def statistics(self, request: Request) -> Response:
        """Return one statistic over a minute, an hour and a day."""
        name, key = (
            fields.text(request, "statsName"),
            fields.text(request, "statsKey"),
        )
        windows = self._stats.windows(name, key)
        if windows is None:
            text = f"The stats <{name}> <{key}> not exist"
            return Response(ResponseCode.SYSTEM_ERROR, text)
        body = {
            label: {"avgpt": rates.avgpt, "sum": rates.sum, "tps": rates.tps}
            for label, rates in windows.items()
        }
        return Response(body=encode(body))

    async def ha_status(self, request: Request) -> Response:
        """Return the replicas of this master, or the connection of this replica."""
        ha, end = self._ha_client, self._store.max_offset
        client = {
            "activated": ha is not None and ha.state is HaState.TRANSFER,
            "lastReadTimestamp": ha.read_ms if ha is not None else 0,
            "lastWriteTimestamp": ha.written_ms if ha is not None else 0,
            "masterAddr": ha.address if ha is not None else "",
            "masterFlushOffset": (ha.master_offset or 0) if ha is not None else 0,
            "maxOffset": end if ha is not None else 0,
            "transferredByteInSecond": 0,
        }
        replicas = self._replicas(end)
        body = {
            "haClientRuntimeInfo": client,
            "haConnectionInfo": replicas,
            "inSyncSlaveNums": sum(bool(each["inSync"]) for each in replicas),
            "master": ha is None,
            "masterCommitLogMaxOffset": end,
        }
        return Response(body=encode(body))

    def _replicas(self, log_end: int) -> list[dict[str, str | int | bool]]:
        """Return HAConnectionRuntimeInfo of each replica; -1 for unknown values."""
        server = self._ha_server
        return (
            []
            if server is None
            else [
                {
                    "addr": each.address,
                    "diff": log_end - (-1 if (end := each.acknowledged) is None else end),
                    "inSync": server.in_sync.is_in_sync(each),
                    "slaveAckOffset": -1 if end is None else end,
                    "transferFromWhere": -1 if each.offset is None else each.offset,
                    "transferredByteInSecond": each.bytes_per_s(),
                }
                for each in server.connections
            ]
        )

    async def clean(self, request: Request) -> Response:
        """Run retention now."""
        await self._store.retention.clean_in_thread()
        return Response()

    # --- groups of entries

    def _broker(self) -> dict[str, str]:
        now_ms, config = self._clock.now_ms(), self._config()
        return {
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "bootTimestamp": str(self._started_ms),
            "runtime": run_time(now_ms - self._started_ms),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_ms),
        }

    def _disk(self) -> dict[str, str]:
        store = self._store
        directory = store.config.commitlog_dir
        ratio = str(round(store.disk_used_ratio, 4))
        usage = shutil.disk_usage(directory if exists(directory) else store.root)
        room = f"Total : {binary_size(usage.total)}, Free : {binary_size(usage.free)}."
        unflushed = max(store.max_offset - store.durable_offset, 0)
        return {
            "commitLogDirCapacity": room,
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{directory}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogMinOffset": str(store.min_offset),
            "commitLogMaxOffset": str(store.max_offset),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "remainHowManyDataToFlush": binary_size(unflushed),
            "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
            "dispatchBehindBytes": "0",
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
        }

    def _earliest_ms(self) -> int:
        store = self._store
        return store.store_ms(store.min_offset) if store.max_offset > store.min_offset else -1

    def _traffic(self) -> dict[str, str]:
        stats, totals = self._stats, self._stats.totals
        average = totals.put_bytes / totals.puts if totals.puts else 0.0
        transferred = stats.tps("transferred")
        return {
            "putTps": stats.tps("put"),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # the spelling of 4.9.x
            "getFoundTps": stats.tps("found"),
            "getMissTps": stats.tps("miss"),
            "getTotalTps": stats.tps("total"),
            "putMessageTimesTotal": str(totals.puts),
            "putMessageSizeTotal": str(totals.put_bytes),
            "putMessageAverageSize": str(average),
            "putMessageFailedTimes": str(totals.put_failures),
            "getMessageEntireTimeMax": "0",
            "msgPutTotalYesterdayMorning": str(stats.puts_at_midnight[0]),
            "msgPutTotalTodayMorning": str(stats.puts_at_midnight[1]),
            "msgPutTotalTodayNow": str(totals.puts),
            "msgGetTotalYesterdayMorning": str(stats.gots_at_midnight[0]),
            "msgGetTotalTodayMorning": str(stats.gots_at_midnight[1]),
            "msgGetTotalTodayNow": str(totals.got_messages),
        }


def _queues_and_timers() -> dict[str, str]:
    """Return constant entries for absent features: thread pools, an idle timer wheel."""
    pairs = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
    for name, capacity in CAPACITIES.items():
        pairs[f"{name}ThreadPoolQueueSize"] = "0"
        pairs[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        pairs[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
    counts = dict.fromkeys(("timerReadBehind", "timerOffsetBehind", "timerCongestNum"), "0")
    rates = dict.fromkeys(("timerEnqueueTps", "timerDequeueTps"), "0.0")
    return pairs | counts | rates


def run_time(span_ms: int) -> str:
    """Return a duration as `[ 0 days, 1 hours, 2 minutes, 3 seconds ]`."""
    minutes, seconds = divmod(max(span_ms, 0) // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
