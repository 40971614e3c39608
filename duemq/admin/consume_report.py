"""Requests about all groups: lag (317), corrected offsets (308).

Source: AdminBrokerProcessor.fetchAllConsumeStatsInBroker, queryCorrectionOffset
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from delayed_delivery.steps import ROWS_PER_TURN, Pauses, collected
from duemq.net import fields
from duemq.net.wire_json import encode
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode
from duemq_common.json_dialect import dumps_compact
from duemq_common.request import Request, RequestHandler, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

REPORT_BYTES_MAX = 12 << 20  # of 317: a client refuses a frame of more than 16 MiB


class ConsumeReport:
    """Handler of codes 317 and 308.

    Args:
        stats_of: Handler of code 208, whose responses are combined.
        address: This broker's `ip:port`.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        clients: ClientTable,
        stats_of: RequestHandler,
        address: str,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._offsets, self._clients = offsets, clients
        self._stats_of, self._address = stats_of, address

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_groups,
            RequestCode.QUERY_CORRECTION_OFFSET: self.corrections,
        }

    async def all_groups(self, request: Request) -> Response:
        """Return the statistics of 208 for every group and topic, and the total lag.

        Topics of groups that would exceed REPORT_BYTES_MAX are left out; the remark has their
        number.
        """
        ordered = fields.boolean(request, "isOrder")
        reports: list[dict[str, list[msgspec.Raw]]] = []
        lag, left_bytes, omitted = 0, REPORT_BYTES_MAX, 0
        by_group, pauses = await self._offsets.topics_by_group(), Pauses()
        for number, group in enumerate(list(self._groups)):
            if number % ROWS_PER_TURN == 0:
                await pauses.after_step()
            topics = self._topics_of(group.name, by_group.get(group.name, ()), ordered)
            parts: list[msgspec.Raw] = []
            for topic in topics if left_bytes > 0 else ():
                await pauses.after_step()
                report = await self._report(group.name, topic)
                left_bytes -= len(bytes(report))
                if left_bytes < 0:
                    break
                parts.append(report)
            omitted += len(topics) - len(parts)
            if parts:
                reports.append({group.name: parts})
                lag += sum(await collected(self._lags(group.name, topics[: len(parts)])))
                await pauses.after_step()
        body = {
            "brokerAddr": self._address,
            "consumeStatsList": reports,
            "totalDiff": lag,
            "totalInflightDiff": 0,
        }
        remark = f"{omitted} topics of groups are left out; ask for a group" if omitted else None
        return Response(remark=remark, body=encode(body))

    def _topics_of(self, group: str, names: Iterable[str], ordered: bool) -> list[str]:
        online = self._clients.topics_of(group)
        return [
            name
            for name in sorted(names)
            if (topic := self._topics.find(name)) is not None
            and topic.order == ordered
            and (not online or name in online)
        ]

    async def _report(self, group: str, topic: str) -> msgspec.Raw:
        response = await self._stats_of(
            Request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
        )
        return msgspec.Raw(
            response.body if response and isinstance(response.body, bytes) else b"{}"
        )

    def _lags(self, group: str, topics: Iterable[str]) -> Iterator[int]:
        """Yield the lag of a group in each queue of topics."""
        for name in topics:
            topic = self._topics.find(name)
            for queue in range(topic.read_queues) if topic else ():
                end = self._store.readable_bounds(name, queue)[1]
                yield max(end - max(self._offsets.query(group, name, queue) or 0, 0), 0)

    async def corrections(self, request: Request) -> Response:
        """Return, per queue, the lowest offset of the other groups of a topic.

        Groups in `filterGroups` are excluded. The offset of the compared group is returned where it
        is lower.
        """
        topic = fields.text(request, "topic")
        compared = fields.text(request, "compareGroup")
        excluded = {g for g in request.fields.get("filterGroups", "").split(",") if g}
        others = [g for g in self._offsets.groups_of(topic) if g not in excluded]
        lowest: dict[int, int] = {}
        pauses = Pauses()
        for group in others:
            for queue, offset in self._offsets.of_pair(group, topic)[0].items():
                lowest[queue] = min(offset, lowest.get(queue, offset))
            await pauses.after_step()
        for queue, own in self._offsets.of_pair(compared, topic)[0].items():
            if queue in lowest and lowest[queue] > own:
                lowest[queue] = own
        return Response(body=dumps_compact({"correctionOffsets": lowest}).encode())
