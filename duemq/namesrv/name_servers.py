"""Name servers: the embedded and the standalone one, and the registration of a broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from duemq.auth.access import AccessControl, open_access
from duemq.auth.account_requests import AccountRequests
from duemq.auth.config import AuthConfig, inner_client
from duemq.configuration.config import BrokerConfig
from duemq.configuration.exposure import listening_address, local_only_notice
from duemq.configuration.settings import Settings
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.registration import BrokerAddress, OnRegistered, Registrar
from duemq.namesrv.second_master import SecondMaster
from duemq.net.client import RemotingClient
from duemq.net.tls import ClientTls, ServerTls, Tls
from duemq.registry.topic_routes import TopicRoutes
from duemq.registry.topics import TopicManager
from duemq_common.clock import Clock
from duemq_common.config import expanded
from duemq_common.host_port import split_address

if TYPE_CHECKING:
    from duemq.namesrv.server import NameServer

log = logging.getLogger(__name__)


def embedded_name_server(
    config: BrokerConfig, kv_path: Path, clock: Clock, access: AccessControl | None, tls: ServerTls
) -> NameServer:
    """Return the embedded name server, not started; it uses the broker's access check."""
    from duemq.namesrv.server import NameServer

    section = NamesrvConfig.embedded_in(config, str(kv_path))
    gate = access.gate if access is not None else None
    return NameServer(
        section,
        clock,
        own_address=config.broker_ip,
        access=gate,
        tls=tls,
        port_key="embeddedNamesrvPort",
    )


def _access_of(config: NamesrvConfig, auth: AuthConfig, clock: Clock) -> AccessControl | None:
    directory = expanded("kvConfigPath", config.kv_config_path).parent
    return open_access(auth, directory, config.cluster_name, clock.now_ms)


@asynccontextmanager
async def name_server(
    config: NamesrvConfig, auth: AuthConfig, clock: Clock, tls: ServerTls
) -> AsyncIterator[NameServer]:
    """Run a standalone name server while the block is active.

    Args:
        auth: Access control; the accounts are in `accountsFile`, or in `duemq.accounts.json` next
            to the key-value file.

    Raises:
        CorruptStore: The key-value file or the accounts file cannot be used.
        UsageError: The port cannot be bound.
    """
    from duemq.namesrv.server import NameServer

    address = listening_address(config.bind_address, has_accounts=auth.is_on)
    if not config.bind_address and not auth.is_on:
        log.warning("%s", local_only_notice("the name server"))
    config = replace(config, bind_address=address)
    access = _access_of(config, auth, clock)
    account_handlers = {}
    if access is not None and access.accounts is not None:
        account_handlers = AccountRequests(access.accounts, access.audit).handlers()
    gate = access.gate if access is not None else None
    async with AsyncExitStack() as stack:
        if access is not None:
            await stack.enter_async_context(access.polling(clock))
        server = NameServer(config, clock, access=gate, extra_handlers=account_handlers, tls=tls)
        yield await stack.enter_async_context(server)


def peer_client(auth: AuthConfig, tls: ClientTls | None) -> Callable[[str], RemotingClient]:
    """Return a factory of clients for name servers and brokers, with this broker's credentials."""
    inner = inner_client(auth)

    def connect(address: str) -> RemotingClient:
        sign = inner.sign if inner is not None else None
        return RemotingClient(address, sign=sign, tls=tls.context if tls is not None else None)

    return connect


def registrar(
    config: Callable[[], BrokerConfig],
    auth: AuthConfig,
    topics: TopicManager,
    clock: Clock,
    *,
    port: int,
    ha_port: int,
    grpc_port: int,
    local: NameServer | None,
    tls: ClientTls | None,
    on_registered: OnRegistered = lambda fields: None,
    second_master: SecondMaster | None = None,
) -> Registrar:
    """Return the registrar of the broker, not started, and connect it to topic changes.

    Args:
        port, ha_port, grpc_port: Ports for clients, replicas and v5 clients; grpc_port 0: none.
        local: The embedded name server.
        tls: TLS of connections to name servers; None: plaintext.
        on_registered: Called with the header fields of each response.
        second_master: Report of a second master; None: none is looked for.
    """
    now = config()
    broker_address = BrokerAddress(
        cluster=now.cluster_name,
        broker_name=now.broker_name,
        address=f"{now.broker_ip}:{port}",
        ha_address=f"{now.broker_ip}:{ha_port}",
        broker_id=now.broker_id,
        grpc=f"{now.broker_ip}:{grpc_port}" if grpc_port else "",
    )
    made = Registrar(
        broker_address,
        topics,
        clock,
        addresses=addresses_of(now),
        local=local,
        interval_ms=now.register_interval_ms,
        timeout_s=now.register_timeout_ms / 1_000,
        permission=lambda: config().permission,
        connect=peer_client(auth, tls),
        on_registered=on_registered,
        second_master=second_master,
    )
    topics.changed, topics.removed = made.changed, made.removed
    return made


def topic_routes(
    settings: Callable[[], Settings],
    tls: Tls,
    clock: Clock,
    local: Callable[[], NameServer | None],
) -> TopicRoutes:
    """Return the routes that all name servers of a broker have.

    Args:
        local: Returns the embedded name server, which starts later; None: there is none.
    """

    def local_route(topic: str) -> dict[str, object] | None:
        server = local()
        return server.table.route(topic) if server is not None else None

    connect = peer_client(settings().auth, tls.client)
    return TopicRoutes(clock, lambda: addresses_of(settings().broker), connect, local_route)


def addresses_of(config: BrokerConfig) -> list[str]:
    """Return `host:port` of the name servers outside the process, without the embedded one.

    Args:
        config: Resolved configuration. `namesrvAddr` may name the embedded name server, which
            has the registration already.
    """
    own_hosts = {config.broker_ip, config.bind_address, "127.0.0.1", "localhost", "::1"}
    own_port = config.embedded_namesrv_port if config.embedded_namesrv_enable else 0
    addresses = ((address, *split_address(address)) for address in config.namesrv_list)
    return [
        address for address, host, port in addresses if port != own_port or host not in own_hosts
    ]
