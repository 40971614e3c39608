"""Table of connected clients: producer and consumer groups, connections and subscriptions.

    heartbeat ----+
    unregister ---+--> ClientTable --> changed groups, whose members are notified (code 40)
    close, expire +

The table counts in the memory budget of the connections. Every connection may register groups of
`FLOOR_BYTES`; with more, a heartbeat is refused while memory is scarce.

The table reads no clock and sends nothing. A member is identified by group and connection. The
client id does not identify it: a producer and a consumer of one process may share an id, and a
reconnecting client briefly has two connections. ConsumerManager, ProducerManager.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field

from duemq.net.memory import FLOOR_BYTES, MemoryBudget
from duemq.registry.filter_compiler import FilterCompiler
from duemq.registry.heartbeats import BROADCASTING, ConsumerEntry, Heartbeat
from duemq.registry.subscriptions import Subscription
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Peer

CHANNEL_EXPIRES_MS = 120_000
GROUPS_PER_PEER_MAX = 4_096
MEMBER_BYTES = 1_024  # estimated objects of one member of one group
SUBSCRIPTION_BYTES = 1_024  # estimated objects of one subscription
TAG_BYTES = 128  # estimated objects of one tag


class Channel(Struct):
    """Connection of one member of a group.

    Attributes:
        account: Account that signed the heartbeat; empty if unsigned.
    """

    peer: Peer
    client_id: str
    language: str
    version: int
    seen_ms: int
    account: str = ""


class ConsumerGroup(Struct):
    """A consumer group with at least one member."""

    name: str
    consume_type: str
    message_model: str
    from_where: str
    channels: dict[Peer, Channel] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    subscription_bytes: int = 0

    @property
    def broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the distinct client ids of the members, sorted."""
        return sorted({channel.client_id for channel in self.channels.values()})

    def find(self, client_id: str) -> Channel | None:
        """Return the newest connection with this client id."""
        channels = [c for c in self.channels.values() if c.client_id == client_id]
        return max(channels, key=lambda c: c.seen_ms, default=None)


class GroupChange(Struct, frozen=True):
    """Change of a consumer group; `peers` are its current members."""

    group: str
    peers: tuple[Peer, ...]
    broadcasting: bool


class ClientTable:
    """Connected producers and consumers of one broker.

    Args:
        expires_ms: Time without a heartbeat after which a connection is removed.
        groups_max: Maximum groups of one connection; further groups are ignored.
        memory: Memory budget of the connections.
    Attributes:
        filters: Compiled property filters.
    """

    def __init__(
        self,
        *,
        expires_ms: int = CHANNEL_EXPIRES_MS,
        groups_max: int = GROUPS_PER_PEER_MAX,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.filters = FilterCompiler(self.subscription)
        self._memory = memory or MemoryBudget()
        self._groups_max = groups_max
        self._expires_ms = expires_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Channel]] = {}
        self._groups_of: dict[Peer, set[str]] = {}  # keys: "c" or "p" and the group name
        self._heartbeat_ms: dict[Peer, int] = {}  # `AwakeTime` of the last heartbeat

    # --- queries

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group that has a member."""
        return self._consumers.get(name)

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        """Yield all consumer groups."""
        return iter(self._consumers.values())

    def producer_groups(self) -> Iterator[tuple[str, list[Channel]]]:
        """Yield all producer groups with their connections."""
        for name, channels in self._producers.items():
            yield name, list(channels.values())

    def members(self, group: str) -> list[str]:
        """Return the client ids of a consumer group, sorted; empty for an unknown group."""
        consumers = self._consumers.get(group)
        return consumers.client_ids() if consumers else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the group's subscription to a topic."""
        consumers = self._consumers.get(group)
        return consumers.subscriptions.get(topic) if consumers else None

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group subscribes to, sorted."""
        consumers = self._consumers.get(group)
        return sorted(consumers.subscriptions) if consumers else []

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """Return the consumer groups that subscribe to a topic."""
        return sorted(g.name for g in self._consumers.values() if topic in g.subscriptions)

    def producer(
        self, group: str, may: Callable[[Channel], bool] = lambda channel: True
    ) -> Channel | None:
        """Return a group's most recently active open connection that satisfies `may`."""
        channels = self._producers.get(group, {}).values()
        alive = [channel for channel in channels if not channel.peer.closed and may(channel)]
        return max(alive, key=lambda c: c.seen_ms, default=None)

    def find_client(self, client_id: str) -> Channel | None:
        """Return a producer's open connection by client id, for request/reply."""
        for channels in self._producers.values():
            for channel in channels.values():
                if channel.client_id == client_id and not channel.peer.closed:
                    return channel
        return None

    # --- events

    def heartbeat(
        self,
        heartbeat: Heartbeat,
        peer: Peer,
        *,
        language: str,
        version: int,
        now_ms: int,
        steady_ms: int | None = None,
        account: str = "",
    ) -> list[GroupChange]:
        """Apply one heartbeat; return the changed consumer groups.

        Args:
            steady_ms: `AwakeTime.now_ms`, from which expiry counts; None: `now_ms`.
        Raises:
            RequestError: Memory is scarce, and the heartbeat adds groups or subscriptions.
        """
        self._check_memory(heartbeat, peer)
        heartbeat_ms = now_ms if steady_ms is None else steady_ms
        channel = Channel(peer, heartbeat.client_id, language, version, now_ms, account)
        for name in heartbeat.producers:
            if self._join(peer, "p" + name, heartbeat_ms):
                self._producers.setdefault(name, {})[peer] = channel
        changed = [
            entry.group
            for entry in heartbeat.consumers
            if self._join(peer, "c" + entry.group, heartbeat_ms)
            and self._update_consumer(entry, channel, with_subscriptions=not heartbeat.without_sub)
        ]
        return self._changes(changed)

    def unregister(
        self, peer: Peer, *, producer_group: str = "", consumer_group: str = ""
    ) -> list[GroupChange]:
        """Remove a connection from the given groups; return changed groups that still exist."""
        if producer_group:
            self._leave(peer, "p" + producer_group)
        if consumer_group and self._leave(peer, "c" + consumer_group):
            return self._changes([consumer_group])
        return []

    def close(self, peer: Peer) -> list[GroupChange]:
        """Remove a closed connection from all groups; return changed groups that still exist."""
        keys = list(self._groups_of.get(peer, ()))
        return self._changes([key[1:] for key in keys if self._leave(peer, key) and key[0] == "c"])

    def expire(self, steady_ms: int) -> tuple[list[Peer], list[GroupChange]]:
        """Remove connections without recent heartbeats; return them and the changes."""
        limit_ms = steady_ms - self._expires_ms
        silent = [
            peer for peer, heartbeat_ms in self._heartbeat_ms.items() if heartbeat_ms < limit_ms
        ]
        changes: dict[str, GroupChange] = {}
        for peer in silent:
            changes.update({change.group: change for change in self.close(peer)})
        return silent, [c for c in changes.values() if c.group in self._consumers]

    # --- internal

    def _check_memory(self, heartbeat: Heartbeat, peer: Peer) -> None:
        """Check that there is memory for the groups and subscriptions that a heartbeat adds.

        Raises:
            RequestError: There is not: SYSTEM_BUSY.
        """
        keys = self._groups_of.get(peer) or set()
        added = sum(member_bytes(name) for name in heartbeat.producers if "p" + name not in keys)
        for entry in heartbeat.consumers:
            added += 0 if "c" + entry.group in keys else member_bytes(entry.group)
            group = self._consumers.get(entry.group)
            subscriptions = group.subscriptions if group is not None else {}
            added += sum(
                subscription_bytes(each)
                for each in entry.subscriptions
                if (old := subscriptions.get(each.topic)) is None or each.version > old.version
            )
        if not added or self._memory.has_room(added):
            return
        if added + sum(map(member_bytes, keys)) > FLOOR_BYTES:
            text = "too many groups and subscriptions for the memory that is left"
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{text} (remotingMemoryMax)")

    def _update_consumer(
        self, entry: ConsumerEntry, channel: Channel, *, with_subscriptions: bool
    ) -> bool:
        group = self._consumers.get(entry.group)
        if group is None:
            group = ConsumerGroup(
                entry.group, entry.consume_type, entry.message_model, entry.from_where
            )
            self._consumers[entry.group] = group
        group.consume_type, group.message_model = entry.consume_type, entry.message_model
        group.from_where = entry.from_where
        registered = group.channels.get(channel.peer)
        group.channels[channel.peer] = channel
        changed = registered is None or registered.client_id != channel.client_id
        if with_subscriptions:
            was_bytes = group.subscription_bytes
            changed |= _merge(group.subscriptions, entry.subscriptions, channel.seen_ms)
            group.subscription_bytes = sum(map(subscription_bytes, group.subscriptions.values()))
            self._memory.reserve(group.subscription_bytes - was_bytes, is_checked=True)
        return changed

    def _join(self, peer: Peer, key: str, heartbeat_ms: int) -> bool:
        keys = self._groups_of.get(peer) or set()
        if key not in keys and len(keys) >= self._groups_max:
            return False
        self._groups_of[peer] = keys
        if key not in keys:
            self._memory.reserve(member_bytes(key[1:]), is_checked=True)
            keys.add(key)
        self._heartbeat_ms[peer] = heartbeat_ms
        return True

    def _leave(self, peer: Peer, key: str) -> bool:
        keys = self._groups_of.get(peer)
        if keys is None or key not in keys:
            return False
        keys.discard(key)
        if not keys:
            del self._groups_of[peer]
            del self._heartbeat_ms[peer]
        name = key[1:]
        self._memory.free(member_bytes(name))
        if key[0] == "p":
            _drop(self._producers[name], peer)
            if not self._producers[name]:
                del self._producers[name]
            return True
        group = self._consumers[name]
        _drop(group.channels, peer)
        if not group.channels:
            del self._consumers[name]
            self._memory.free(group.subscription_bytes)
        return True

    def _changes(self, names: Iterable[str]) -> list[GroupChange]:
        groups = [self._consumers[name] for name in dict.fromkeys(names) if name in self._consumers]
        return [GroupChange(g.name, tuple(g.channels), g.broadcasting) for g in groups]


def member_bytes(group: str) -> int:
    """Return the estimated memory of one member of a group, in bytes."""
    return MEMBER_BYTES + 2 * sys.getsizeof(group)


def subscription_bytes(subscription: Subscription) -> int:
    """Return the estimated memory of a subscription, in bytes."""
    texts = sys.getsizeof(subscription.topic) + sys.getsizeof(subscription.expression)
    return SUBSCRIPTION_BYTES + texts + TAG_BYTES * len(subscription.tags)


def _drop(channels: dict[Peer, Channel], peer: Peer) -> None:
    channels.pop(peer, None)


def _merge(
    registered: dict[str, Subscription], subscriptions: tuple[Subscription, ...], now_ms: int
) -> bool:
    """Update a group's subscriptions; return whether topics were added or removed.

    A subscription of an older version does not replace a newer one, but the set of topics is always
    that of the latest heartbeat. ConsumerGroupInfo.updateSubscription.
    """
    changed = False
    for subscription in subscriptions:
        old = registered.get(subscription.topic)
        changed |= old is None
        if old is None or subscription.version > old.version:
            registered[subscription.topic] = subscription.registered(now_ms, old)
    removed = registered.keys() - {subscription.topic for subscription in subscriptions}
    for topic in removed:
        del registered[topic]
    return changed or bool(removed)
