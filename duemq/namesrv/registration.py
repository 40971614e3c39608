"""Registration of the broker with name servers, remote and embedded.

    start, every 30 s, connection lost --> 103 with all topics; before it 105: a second master?
    topic changed ----------------------> 103 with that topic, or with all if the last one failed
    stop -------------------------------> 104

Each name server has a link with a separate task and lock. A name server that does not respond
therefore does not delay the others. A link sends versions in order, because a name server that has
version 7 ignores version 6. Topics changed since the last response are sent together.

Source: BrokerOuterAPI.registerBrokerAll, BrokerController.registerIncrementBrokerData
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from duemq.namesrv.registration_body import crc_of, encode_body
from duemq.namesrv.route_table import BrokerAddrInfo, Registration
from duemq.namesrv.second_master import CALL_S_MAX, SecondMaster
from duemq.net.client import RemotingClient
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topic_routes import GRPC
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.data_version import DataVersion
from duemq_common.errors import PeerError
from duemq_common.request import Peer, Request
from duemq_common.topics import PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from duemq.namesrv.server import NameServer
    from duemq.registry.topics import TopicManager

log = logging.getLogger(__name__)
CHANGE_TIMEOUT_S = 2.0  # a client waits 3 s for the request that changed the topic
UNREGISTER_TIMEOUT_S = 1.0  # delays a change of role
RETRY_MS = 5_000
PAUSE_MS_MIN = 1_000
LINKS_MAX = 64
OnRegistered = Callable[[Mapping[str, str]], None]
"""Callback for the response fields of each registration: `masterAddr`, `haServerAddr`."""
TOPICS_PER_TURN = 4_096  # topics of a periodic local registration between two yields


class RegistrationRefused(PeerError):
    """Error response of a name server to a registration."""

    def __init__(self, code: int, remark: str | None) -> None:
        self.code = code
        super().__init__(f"response code {code}: {remark}")


def hint_of(error: Exception) -> str:
    """Return what to check after a failed registration."""
    if isinstance(error, RegistrationRefused) and error.code == ResponseCode.NO_PERMISSION:
        return (
            "it requires an account (innerClientAuthenticationCredentials here), or does not "
            "accept brokers from this address (registerFrom there)"
        )
    if isinstance(error, ssl.SSLError):
        return "check the certificates of both, and the tls.client keys"
    if isinstance(error, ConnectionResetError):
        return "its log has the reason; check useTLS and tls.client.certPath if it requires TLS"
    return "check that it runs and that its address in namesrvAddr is right"


class BrokerAddress(Struct, frozen=True, kw_only=True):
    """Identity of a broker in a registration; addresses are the `ip:port` that clients use.

    Attributes:
        grpc: Address for v5 clients; empty: the broker does not serve them.
    """

    cluster: str
    broker_name: str
    address: str
    ha_address: str
    broker_id: int = 0
    grpc: str = ""

    @property
    def filter_servers(self) -> list[str]:
        """The address for v5 clients as `filterServerList`."""
        return [GRPC + self.grpc] if self.grpc else []

    def fields(self) -> dict[str, str]:
        """Return the header fields that 103 and 104 share."""
        return {
            "brokerAddr": self.address,
            "brokerId": str(self.broker_id),
            "brokerName": self.broker_name,
            "clusterName": self.cluster,
        }


def register_request(
    broker: BrokerAddress, version: DataVersion, topics: Iterable[TopicConfig], now_ms: int
) -> Request:
    """Return request 103 as a 5.3.3 broker sends it."""
    body = encode_body(version, topics, now_ms, broker.filter_servers)
    extra = {
        "bodyCrc32": str(crc_of(body)),
        "compressed": "false",
        "enableActingMaster": "false",
        "haServerAddr": broker.ha_address,
    }
    return Request(RequestCode.REGISTER_BROKER, broker.fields() | extra, body)


class RegistrationSnapshot:
    """Builder of registrations from the current topics, limited to the broker's permission."""

    def __init__(
        self,
        broker: BrokerAddress,
        topics: TopicManager,
        clock: Clock,
        permission: Callable[[], int],
    ) -> None:
        self.broker, self._topics, self._clock, self._permission = broker, topics, clock, permission
        self._last_permission, self._changes = permission(), 0

    def request(self, changed: Iterable[TopicConfig] | None = None) -> Request:
        """Return request 103 with `changed`; None: with all topics."""
        topics = self._masked(self._topics if changed is None else changed)
        return register_request(self.broker, self._version(), topics, self._clock.now_ms())

    @property
    def permission(self) -> int:
        """Current permission of the broker as a whole: 2 write, 4 read."""
        return self._permission()

    def topics(self) -> list[TopicConfig]:
        """Return all topics."""
        return list(self._topics)

    def local(self, changed: Iterable[TopicConfig] | None = None) -> Registration:
        """Return the registration for the embedded name server, with `changed` or all topics."""
        return Registration(
            cluster=self.broker.cluster,
            broker_name=self.broker.broker_name,
            broker_id=self.broker.broker_id,
            address=self.broker.address,
            ha_address=self.broker.ha_address,
            version=self._version(),
            topics=list(self._masked(self._topics if changed is None else changed)),
            acting_master=False,
            local=True,
            filter_servers=tuple(self.broker.filter_servers),
        )

    def _version(self) -> DataVersion:
        """Return the version of the topics, increased by each change of the permission.

        A name server ignores the topics of a version that it has.

        Source: AdminBrokerProcessor.updateBrokerConfig
        """
        if self._permission() != self._last_permission:
            self._last_permission = self._permission()
            self._changes += 1
        version = self._topics.version
        return replace(version, counter=version.counter + self._changes)

    def _masked(self, topics: Iterable[TopicConfig]) -> Iterator[TopicConfig]:
        mask = self._permission()
        whole = mask & PERM_READ and mask & PERM_WRITE
        for topic in topics:
            yield topic if whole else topic.replace(perm=topic.perm & mask)


class NameServerRegistration:
    """Registration with one name server.

    Attributes:
        registered: Whether the name server has all topics of this broker.
        failure: Error of the last attempt; empty if it succeeded.
        tried: Set when the first attempt ends, successful or not.
    """

    def __init__(
        self,
        address: str,
        snapshot: RegistrationSnapshot,
        client: RemotingClient,
        clock: Clock,
        *,
        timeout_s: float,
        on_registered: OnRegistered,
        second_master: SecondMaster | None = None,
    ) -> None:
        self.address = address
        self.registered = False
        self.failure = ""
        self._reported: set[str] = set()  # hints logged since the last success
        self.tried = asyncio.Event()
        self._snapshot, self._client, self._clock = snapshot, client, clock
        self._timeout_s, self._on_registered = timeout_s, on_registered
        self._second_master, self._was_refused = second_master, False
        self._changed: dict[str, TopicConfig] = {}
        self._connection: Peer | None = None
        self._sending = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._attempt_timeout: asyncio.Timeout | None = None

    async def run(self, interval_ms: int) -> None:
        """Register periodically until `stop`; then unregister."""
        try:
            while not self._stop.is_set():
                started_ms = self._clock.now_ms()
                self._wake.clear()
                await self._attempt()
                wait_ms = interval_ms if self.registered else RETRY_MS
                for event, ms in ((self._wake, wait_ms), (self._stop, PAUSE_MS_MIN)):
                    since_ms = min(started_ms, self._clock.now_ms())  # the clock may be set back
                    await self._clock.wait(event, until_ms=since_ms + ms)
            await self._unregister()
        finally:
            await self._client.close()

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()
        self._wake.set()
        if self._attempt_timeout is not None:
            self._attempt_timeout.reschedule(asyncio.get_running_loop().time())

    def register_now(self) -> None:
        """Register before the end of the interval."""
        self._wake.set()

    async def push(self, topics: Iterable[TopicConfig]) -> None:
        """Report changed topics; return when the name server has responded, or after 2 s.

        While not registered, `run` sends them with the next registration.
        """
        self._changed.update({topic.name: topic for topic in topics})
        if not self.registered:
            self._wake.set()
            return
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S), self._sending:
                if self._changed:
                    await self._send(list(self._changed.values()))
        except (OSError, PeerError) as error:
            self._failed(error)
            self._wake.set()

    async def _attempt(self) -> None:
        try:
            async with self._sending, asyncio.timeout(self._timeout_s) as self._attempt_timeout:
                await self._look_for_second_master()
                await self._send(None)
        except (OSError, PeerError) as error:
            self._failed(error)
            self._was_refused = isinstance(error, RegistrationRefused)
        else:
            if self.failure:
                log.warning("name server %s: registered again", self.address)
            self.failure, self._was_refused = "", False
            self._reported.clear()
        finally:
            self._attempt_timeout = None
            self.tried.set()

    async def _look_for_second_master(self) -> None:
        """Request the address of this broker's id, if the last registration had a response.

        After the first registration and after a lost connection, the address of a former master may
        still be registered. A failure has no effect, because the registration reports it.
        """
        if self._second_master is not None and (self.registered or self._was_refused):
            request = self._second_master.request()
            try:
                limit_s = min(CALL_S_MAX, self._timeout_s / 4)  # the registration needs the rest
                response = await self._client.call(request, timeout_s=limit_s)
            except (OSError, PeerError):
                return
            self._second_master.observe(self.address, response)

    async def _send(self, topics: Sequence[TopicConfig] | None) -> None:
        """Send request 103, with all topics after a lost connection, which removes the routes."""
        whole = topics is None or not self._connected
        self._changed = {}
        request = self._snapshot.request(None if whole else topics)
        try:
            self._watch(await self._client.connect())
            response = await self._client.call(request, timeout_s=self._timeout_s)
            if response.code != ResponseCode.SUCCESS:
                raise RegistrationRefused(response.code, response.remark)
            self._on_registered(response.fields or {})
        except BaseException:
            self.registered = False  # the request may not have arrived: send all topics next time
            raise
        self.registered = self._connected

    @property
    def _connected(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def _watch(self, connection: Peer) -> None:
        if connection is not self._connection:
            self._connection = connection
            connection.on_close(self._lost)

    def _lost(self, peer: Peer) -> None:
        if peer is self._connection:
            self.registered = False
            self._wake.set()

    def _failed(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        hint = hint_of(error)
        if hint not in self._reported and not self._stop.is_set():
            log.warning(
                "name server %s: not registered (%s). Clients that use it do not find this broker. "
                "Retrying every %d s; %s",
                self.address,
                reason,
                RETRY_MS // 1_000,
                hint,
            )
            self._reported.add(hint)
        self.failure = reason

    async def _unregister(self) -> None:
        request = Request(RequestCode.UNREGISTER_BROKER, self._snapshot.broker.fields())
        try:
            if self.registered:  # if not, closing the connection has the same effect
                await self._client.call(request, timeout_s=UNREGISTER_TIMEOUT_S)
        except OSError as error:
            log.info("name server %s: not informed of the stop: %s", self.address, error)


class Registrar:
    """Registration of the broker with every name server, renewed until stopped.

    Args:
        local: Name server embedded in this process; None: there is none.
        interval_ms: Pause between two full registrations, in milliseconds.
        timeout_s: Maximum time for one response, in seconds.
        permission: Permission of the broker as a whole (2 write, 4 read), at each registration.
        second_master: Report of a second master; None: this broker is no master, or a controller
            elects the master.
    """

    def __init__(
        self,
        broker: BrokerAddress,
        topics: TopicManager,
        clock: Clock,
        *,
        addresses: Sequence[str] = (),
        local: NameServer | None = None,
        interval_ms: int = 30_000,
        timeout_s: float = 24.0,
        permission: Callable[[], int] = lambda: PERM_READ | PERM_WRITE,
        connect: Callable[[str], RemotingClient] = RemotingClient,
        on_registered: OnRegistered = lambda fields: None,
        second_master: SecondMaster | None = None,
    ) -> None:
        self._second_master = second_master
        self._snapshot = RegistrationSnapshot(broker, topics, clock, permission)
        self._clock, self._local = clock, local
        self._stop = asyncio.Event()
        self._local_permission: int | None = None  # permission in the last local registration
        self._permission = permission()
        self._addresses, self._on_registered = list(addresses), on_registered
        self._interval_ms, self._timeout_s, self._connect = interval_ms, timeout_s, connect
        self._links: dict[str, NameServerRegistration] = {}
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def links(self) -> Mapping[str, NameServerRegistration]:
        """Links by name server address."""
        return self._links

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Register; unregister everywhere when the block ends."""
        self._register_local(())
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self.set_addresses(self._addresses)
                if self._local is not None:
                    tasks.create_task(self._keep_local(), name="local registration")
                try:
                    yield self
                finally:
                    self._tasks = None
                    self._stop.set()
                    for link in self._links.values():
                        link.stop()
        finally:
            if self._local is not None:
                broker = self._snapshot.broker
                self._local.unregister_local(BrokerAddrInfo(broker.cluster, broker.address))

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Register with these name servers; unregister from removed ones.

        After a change of the broker's permission, register with all of them at once.
        """
        self._addresses = list(dict.fromkeys(addresses))[:LINKS_MAX]
        if self._tasks is None:
            return
        self._register_local(())
        if self._permission != self._snapshot.permission:
            self._permission = self._snapshot.permission
            for link in self._links.values():
                link.register_now()
        for address in [each for each in self._links if each not in self._addresses]:
            self._links.pop(address).stop()
        for address in self._addresses:
            if address not in self._links:
                self._links[address] = self._start_link(address, self._tasks)

    def _start_link(self, address: str, tasks: asyncio.TaskGroup) -> NameServerRegistration:
        client = self._connect(address)
        link = NameServerRegistration(
            address,
            self._snapshot,
            client,
            self._clock,
            timeout_s=self._timeout_s,
            on_registered=self._on_registered,
            second_master=self._second_master,
        )
        tasks.create_task(link.run(self._interval_ms), name=f"registration with {address}")
        return link

    async def changed(self, topics: Sequence[TopicConfig]) -> None:
        """Report created and changed topics to every name server (`TopicListener`).

        Returns when all reachable name servers have responded, or after 2 s.
        """
        self._register_local(topics)
        if self._tasks is not None and self._links:
            await asyncio.gather(*(link.push(topics) for link in self._links.values()))

    def removed(self, topic: str) -> None:
        """Remove the route of a deleted topic from the embedded name server."""
        if self._local is not None:
            self._local.drop_local_topic(self._snapshot.broker.broker_name, topic)

    async def _keep_local(self) -> None:
        """Restore deleted routes of existing topics periodically, as 103 does on remote servers."""
        while not self._stop.is_set():
            until_ms = self._clock.now_ms() + self._interval_ms
            await self._clock.wait(self._stop, until_ms=until_ms)
            topics = self._snapshot.topics()
            for first in range(0, len(topics), TOPICS_PER_TURN):
                if self._stop.is_set():
                    return
                self._register_local(topics[first : first + TOPICS_PER_TURN])
                await asyncio.sleep(0)

    def _register_local(self, changed: Sequence[TopicConfig]) -> None:
        """Register `changed` with the embedded name server.

        The first registration, and one after a change of the broker's permission, has all topics.
        """
        if self._local is None:
            return
        permission = self._snapshot.permission
        whole = permission != self._local_permission
        self._local_permission = permission
        self._local.register_local(self._snapshot.local(None if whole else changed))
