"""Port of RocketMQ 5 clients (`grpcServerPort`).

The HTTP/2 and protocol buffer libraries are imported only if the port is configured.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from duemq.auth.config import AuthConfig
from duemq.broker.components import BrokerComponents, BrokerContext
from duemq.broker.send_assembly import make_ack_batch, make_decoded_sends
from duemq.configuration.config import BrokerConfig
from duemq.configuration.exposure import warn_if_exposed
from duemq.namesrv.name_servers import peer_client
from duemq.net.allowed_networks import parse_sources
from duemq.net.bound_socket import bind
from duemq.net.limits import body_bytes_max, limits_of
from duemq.net.tls import Tls

if TYPE_CHECKING:
    from duemq.v5.config import V5Config

log = logging.getLogger(__name__)
PORT_KEY = "grpcServerPort"


@contextmanager
def bind_v5(config: BrokerConfig) -> Iterator[socket.socket | None]:
    """Yield a socket bound to the port, not listening; None if the port is not configured.

    Raises:
        UsageError: The port cannot be bound.
    """
    if not config.grpc_port:
        yield None
        return
    with bind(config.bind_address, config.grpc_port, key=PORT_KEY) as bound:
        yield bound


def _v5_config(parts: BrokerComponents, context: BrokerContext, port: int) -> V5Config:
    from duemq.v5.config import V5Config

    broker = context.config()
    return V5Config(
        host=broker.broker_ip,
        port=port,
        body_bytes_max=body_bytes_max(parts.store.config.message_bytes_max),
        type_check=broker.topic_type_check,
        permission=broker.permission,
    )


@asynccontextmanager
async def serving_v5(
    bound: socket.socket | None, parts: BrokerComponents, context: BrokerContext, tls: Tls
) -> AsyncIterator[int]:
    """Serve v5 clients on a bound socket while the block is active; yield the port.

    Args:
        bound: The socket; None: v5 clients are not served, and the port is 0.
    Raises:
        UsageError: The socket cannot listen.
    """
    if bound is None:
        yield 0
        return
    from duemq.net.http2.grpc_call import GrpcLimits
    from duemq.v5.cluster import V5Cluster
    from duemq.v5.server import V5Server

    port = int(bound.getsockname()[1])
    config = partial(_v5_config, parts, context, port)
    cluster = V5Cluster(
        context.routes,
        parts.identity,
        config,
        peer_client(AuthConfig(), tls.client),
        is_replica=parts.replica is not None,
    )
    broker = context.config()
    limits = limits_of(broker)
    call_limits = GrpcLimits(
        connections_max=limits.connections_max,
        backlog=limits.backlog,
        idle_ms_max=limits.idle_ms_max,
    )
    server = V5Server(
        parts.dispatcher,
        make_decoded_sends(parts, context),
        context.access,
        parts.topics,
        parts.groups,
        parts.identity,
        context.clock,
        config,
        make_ack_batch(parts, context),
        parts.pop.reviver.settled_ms if parts.pop else context.clock.now_ms,
        parts.rpc,
        cluster,
    )
    serving = server.running(
        bound,
        call_limits,
        memory=parts.memory,
        tls=tls.server,
        proxies=parse_sources("proxyProtocolFrom", broker.proxy_protocol_from),
    )
    async with serving:
        address, checked = broker.bind_address, context.access is not None
        off = f"{PORT_KEY}=0"
        warn_if_exposed("the port of v5 clients", address, port, off=off, checked=checked)
        log.info("v5 clients are served on port %d", port)
        yield port
