"""Name servers of a broker: the embedded one, and the registration with all of them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from duemq.auth.access import AccessControl, open_access
from duemq.auth.account_requests import AccountRequests
from duemq.auth.config import AuthConfig, inner_client
from duemq.configuration.config import BrokerConfig
from duemq.exposure import listening_address, local_only_notice
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.registration import Answered, BrokerAddress, Registrar
from duemq.net.client import RemotingClient
from duemq.net.tls import ServerTls
from duemq.registry.topics import TopicManager
from message_store.clock import Clock

if TYPE_CHECKING:
    from duemq.namesrv.server import NameServer

log = logging.getLogger(__name__)


def embedded_name_server(
    config: BrokerConfig, kv_path: Path, clock: Clock, access: AccessControl | None, tls: ServerTls
) -> NameServer:
    """Return the name server inside the broker, not started; it checks requests as the broker."""
    from duemq.namesrv.server import NameServer

    section = NamesrvConfig.embedded_in(config, str(kv_path))
    gate = access.gate if access is not None else None
    return NameServer(section, clock, own_address=config.broker_ip, access=gate, tls=tls)


def _access_of(config: NamesrvConfig, auth: AuthConfig, clock: Clock) -> AccessControl | None:
    directory = Path(config.kv_config_path).expanduser().parent
    return open_access(auth, directory, config.cluster_name, clock.now_ms)


@asynccontextmanager
async def name_server(
    config: NamesrvConfig, auth: AuthConfig, clock: Clock, tls: ServerTls
) -> AsyncIterator[NameServer]:
    """Serve a name server of its own while the block is open.

    Args:
        auth: Its accounts: `duemq.accounts.json` in the directory of the key-value file, or
            `accountsFile`.

    Raises:
        CorruptStore: The key-value file or the file of accounts cannot be used.
        UsageError: The port cannot be had.
    """
    from duemq.namesrv.server import NameServer

    address = listening_address(config.bind_address, has_accounts=auth.is_on)
    if not config.bind_address and not auth.is_on:
        log.warning("%s", local_only_notice("the name server"))
    config = replace(config, bind_address=address)
    access = _access_of(config, auth, clock)
    users = access.accounts if access is not None else None
    more = AccountRequests(users).handlers() if users is not None else {}
    gate = access.gate if access is not None else None
    async with AsyncExitStack() as stack:
        if access is not None:
            await stack.enter_async_context(access.polling(clock))
        server = NameServer(config, clock, access=gate, more=more, tls=tls)
        yield await stack.enter_async_context(server)


def peer_client(auth: AuthConfig, tls: ssl.SSLContext | None) -> Callable[[str], RemotingClient]:
    """Return what makes clients of name servers and brokers, which sign as this broker does."""
    inner = inner_client(auth)

    def connect(address: str) -> RemotingClient:
        return RemotingClient(address, sign=inner.sign if inner is not None else None, tls=tls)

    return connect


def registrar(
    config: Callable[[], BrokerConfig],
    auth: AuthConfig,
    topics: TopicManager,
    clock: Clock,
    *,
    port: int,
    ha_port: int,
    local: NameServer | None,
    tls: ssl.SSLContext | None,
    answered: Answered = lambda fields: None,
) -> Registrar:
    """Return what registers the broker, not started; it reports changed topics from now on.

    Args:
        port: Port that clients connect to.
        ha_port: Port that replicas connect to.
        local: The embedded name server.
        tls: Context of connections to name servers; None: plaintext.
        answered: Called with each answer.
    """
    now = config()
    us = BrokerAddress(
        cluster=now.cluster_name,
        broker_name=now.broker_name,
        address=f"{now.broker_ip}:{port}",
        ha_address=f"{now.broker_ip}:{ha_port}",
        broker_id=now.broker_id,
    )
    made = Registrar(
        us,
        topics,
        clock,
        addresses=addresses_of(now),
        local=local,
        interval_ms=now.register_interval_ms,
        timeout_s=now.register_timeout_ms / 1_000,
        permission=lambda: config().permission,
        connect=peer_client(auth, tls),
        answered=answered,
    )
    topics.changed, topics.removed = made.changed, made.removed
    return made


def addresses_of(config: BrokerConfig) -> list[str]:
    """Return `host:port` of the name servers outside the process."""
    return [f"{host}:{port}" for host, port in config.namesrv_list]
