"""Client requests: heartbeat (34), unregister (35), group members (38), configuration check (46).

Source: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Self

import msgspec
from msgspec.structs import replace

from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.auth.signature import account_of
from duemq.configuration.config import BrokerConfig
from duemq.filters import FilterError
from duemq.net import fields
from duemq.net.dispatcher import Handler
from duemq.registry.clients import ClientTable, GroupChange
from duemq.registry.filter_compiler import COMPILE_INLINE_CHARS_MAX, check_filter
from duemq.registry.groups import GroupManager
from duemq.registry.heartbeats import (
    Heartbeat,
    HeartbeatLimits,
    parse_heartbeat,
    parse_subscription,
)
from duemq.registry.subscriptions import ExpressionError
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common.clock import AwakeTime, Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Peer, Request, Response
from duemq_common.topics import RETRY_PREFIX

log = logging.getLogger(__name__)
SCAN_MS = 10_000
CHECK_BYTES_MAX = 1 << 18  # body of a configuration check: one subscription
PARSE_INLINE_BYTES_MAX = 65_536
PIECE_MAX = 512  # groups and subscriptions applied per event loop turn


class ClientProcessor:
    """Handler of codes 34, 35, 38 and 46; notifies group members of changes by code 40."""

    def __init__(
        self,
        clients: ClientTable,
        topics: TopicManager,
        groups: GroupManager,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._compiling = asyncio.Lock()
        self._clients, self._topics, self._groups = clients, topics, groups
        self._clock, self._config, self._time = clock, config, AwakeTime(clock)
        self._watched: set[Peer] = set()
        self._stopped = asyncio.Event()

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    async def heartbeat(self, request: Request) -> Response:
        """Apply a heartbeat: create groups and retry topics, notify members of changed groups.

        The producer groups of an account that may not send to any topic are ignored: each client
        has one, also a consumer.
        """
        heartbeat = await self._parsed(request)
        account = account_of(request)
        if not self._records.may_publish(account, _peer(request).address[0]):
            heartbeat = replace(heartbeat, producers=())
        await self._prepare_groups(heartbeat)
        changed = heartbeat.fingerprint == 0
        pieces = list(_pieces(heartbeat))
        for number, part in enumerate(pieces, start=1):
            peer = _peer(request)  # the connection may have closed meanwhile
            self._watch(peer)
            changes = self._clients.heartbeat(
                part,
                peer,
                language=request.language,
                version=request.version,
                now_ms=self._clock.now_ms(),
                account=account,
                steady_ms=self._time.now_ms(),
            )
            self._notify(changes)
            changed |= bool(changes)
            if number < len(pieces):
                await asyncio.sleep(0)
        return Response(
            fields={
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": "true" if changed else "false",
            }
        )

    def unregister(self, request: Request) -> Response:
        """Remove the client from the given groups; notify the remaining members."""
        fields.text(request, "clientID")
        self._notify(
            self._clients.unregister(
                _peer(request),
                producer_group=request.fields.get("producerGroup", ""),
                consumer_group=request.fields.get("consumerGroup", ""),
            )
        )
        return Response(fields={})

    def members(self, request: Request) -> Response:
        """Return the client ids of a consumer group."""
        group = fields.text(request, "consumerGroup")
        ids = self._clients.members(group)
        if not ids:
            return Response(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}", fields={}
            )
        return Response(fields={}, body=msgspec.json.encode({"consumerIdList": ids}))

    async def check_config(self, request: Request) -> Response:
        """Check whether a property filter is supported and valid."""
        if len(request.body) > CHECK_BYTES_MAX:
            text = f"the body has {len(request.body)} bytes; the limit is {CHECK_BYTES_MAX}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        try:
            data = msgspec.json.decode(request.body) if request.body else None
            subscription_data = data.get("subscriptionData") if isinstance(data, dict) else None
            subscription = parse_subscription(subscription_data) if subscription_data else None
        except ExpressionError as fault:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(fault)) from fault
        except (ValueError, RecursionError) as fault:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"client config: {fault}") from fault
        if subscription is None or subscription.is_tag:
            return Response()
        if not self._config().property_filter_enable:
            return Response(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.kind}; "
                "set enablePropertyFilter=true",
            )
        kind, expression = subscription.kind, subscription.expression
        try:
            if len(expression) > COMPILE_INLINE_CHARS_MAX:
                async with self._compiling:
                    await asyncio.to_thread(check_filter, kind, expression)
            else:
                self._clients.filters.compile(kind, expression)
        except FilterError as fault:
            return Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(fault))
        return Response()

    def scan(self) -> None:
        """Remove clients without recent heartbeats; notify their groups."""
        silent, changes = self._clients.expire(self._time.now_ms())
        for peer in silent:
            log.info("client at %s sent no heartbeat for too long: removed", peer.address)
        self._notify(changes)

    async def run(self) -> None:
        """Scan until stopped."""
        while not self._stopped.is_set():
            await self._time.pause(self._stopped, SCAN_MS)
            self.scan()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the scan while the block is active."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="client scan")
            try:
                yield self
            finally:
                self._stopped.set()

    async def _parsed(self, request: Request) -> Heartbeat:
        """Parse the heartbeat; a large one in a thread, so that the loop is not blocked."""
        config, body = self._config(), request.body
        limits = HeartbeatLimits(config.client_groups_max, config.heartbeat_subscriptions_max)
        if len(body) <= PARSE_INLINE_BYTES_MAX:
            return parse_heartbeat(body, limits)
        return await asyncio.to_thread(parse_heartbeat, bytes(body), limits)

    async def _prepare_groups(self, heartbeat: Heartbeat) -> None:
        """Create missing groups and retry topics, piece by piece."""
        for part in _pieces(heartbeat):
            retry_topics = []
            for entry in part.consumers:
                group = self._groups.find_or_create(entry.group)
                if group is None or group.retry_queues <= 0:
                    continue
                name = RETRY_PREFIX + entry.group
                if self._topics.find(name) is None:
                    retry_topics.append((name, group.retry_queues))
            if retry_topics:
                await self._topics.ensure_all(
                    [
                        TopicConfig(name=name, read_queues=queues, write_queues=queues)
                        for name, queues in retry_topics
                    ]
                )

    def _notify(self, changes: Iterable[GroupChange]) -> None:
        if not self._config().notify_consumer_change:
            return
        for change in changes:
            group = self._groups.find_or_create(change.group)
            if change.broadcasting or (group is not None and not group.notify_changed):
                continue
            for peer in change.peers:
                peer.send_oneway(
                    Request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        {"consumerGroup": change.group},
                        oneway=True,
                    )
                )

    def _watch(self, peer: Peer) -> None:
        if peer not in self._watched:
            self._watched.add(peer)
            peer.on_close(self._closed)

    def _closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        self._notify(self._clients.close(peer))


def _pieces(heartbeat: Heartbeat) -> Iterator[Heartbeat]:
    """Split a heartbeat into pieces of at most PIECE_MAX; the first has the producers."""
    producers, first, weight = heartbeat.producers, 0, 0
    for index, entry in enumerate(heartbeat.consumers):
        weight += 1 + len(entry.subscriptions)
        if weight >= PIECE_MAX:
            yield replace(
                heartbeat, producers=producers, consumers=heartbeat.consumers[first : index + 1]
            )
            producers, first, weight = (), index + 1, 0
    if producers or first < len(heartbeat.consumers):
        yield replace(heartbeat, producers=producers, consumers=heartbeat.consumers[first:])


def _peer(request: Request) -> Peer:
    if request.peer is None or request.peer.closed:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the connection is closed")
    return request.peer
