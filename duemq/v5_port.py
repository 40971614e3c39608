"""The port of RocketMQ 5 clients: `grpcServerPort`.

The library for HTTP/2 and that for protocol buffers are imported only when the port is configured.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from duemq.assembly import Parts, Surroundings
from duemq.configuration.config import BrokerConfig
from duemq.exposure import warn_if_exposed
from duemq.net.allowed_networks import parse_sources
from duemq.net.bound_socket import bind
from duemq.net.limits import body_bytes_max, limits_of
from duemq.net.tls import ServerTls
from duemq.send_assembly import make_decoded_sends

log = logging.getLogger(__name__)
PORT_KEY = "grpcServerPort"


@contextmanager
def bind_v5(config: BrokerConfig) -> Iterator[socket.socket | None]:
    """Yield a socket that has the port but does not listen yet; None: v5 clients are not served.

    Raises:
        UsageError: The port cannot be had.
    """
    if not config.grpc_port:
        yield None
        return
    with bind(config.bind_address, config.grpc_port, key=PORT_KEY) as bound:
        yield bound


@asynccontextmanager
async def serving_v5(
    bound: socket.socket | None, parts: Parts, around: Surroundings, tls: ServerTls
) -> AsyncIterator[int]:
    """Serve v5 clients on a bound socket while the block is open; yield the port.

    Args:
        bound: The socket; None: they are not served, and the port is 0.
    Raises:
        UsageError: The port cannot be had.
    """
    if bound is None:
        yield 0
        return
    from duemq.net.http2.grpc_call import GrpcLimits
    from duemq.v5.front import V5Front
    from duemq.v5.front_config import FrontConfig

    port = int(bound.getsockname()[1])

    def config() -> FrontConfig:
        now = around.config()
        return FrontConfig(
            host="",
            port=port,
            body_bytes_max=body_bytes_max(parts.store.config.message_bytes_max),
            type_check=now.topic_type_check,
            permission=now.permission,
        )

    broker = around.config()
    limits = limits_of(broker)
    front = V5Front(
        parts.dispatcher, make_decoded_sends(parts, around), around.access, parts.topics,
        parts.groups, parts.identity, around.clock, config,
    )  # fmt: skip
    serving = front.running(
        bound,
        GrpcLimits(
            connections_max=limits.connections_max,
            backlog=limits.backlog,
            idle_ms_max=limits.idle_ms_max,
        ),
        memory=parts.memory,
        tls=tls,
        proxies=parse_sources("proxyProtocolFrom", broker.proxy_protocol_from),
    )
    async with serving:
        address, checked = broker.bind_address, around.access is not None
        off = f"{PORT_KEY}=0"
        warn_if_exposed("the port of v5 clients", address, port, off=off, checked=checked)
        log.info("v5 clients are served on port %d", port)
        yield port
