"""gRPC server: HTTP/2 on one port, with or without TLS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial

from duemq.net.accepting_server import AcceptingServer
from duemq.net.allowed_networks import Sources
from duemq.net.http2.grpc_call import GrpcLimits, GrpcMethod
from duemq.net.http2.grpc_connection import GrpcConnection
from duemq.net.memory import MemoryBudget
from duemq.net.tls import ServerTls
from duemq_common.clock import Clock
from duemq_common.errors import UsageError

PREFACE = b"PRI"
"""First bytes of HTTP/2; a PROXY header begins with the same byte."""


class GrpcServer(AcceptingServer[GrpcConnection]):
    """gRPC server on one port; a context manager that stops on exit.

    Args:
        methods: Methods by path.
        memory: Memory budget, shared with other servers.
        tls: Mode and certificates; None: plaintext only.
        proxies: Peers whose PROXY header is trusted.
    """

    def __init__(
        self,
        methods: Mapping[bytes, GrpcMethod],
        limits: GrpcLimits,
        *,
        clock: Clock,
        memory: MemoryBudget,
        tls: ServerTls | None,
        proxies: Sources,
    ) -> None:
        super().__init__(limits, clock=clock, memory=memory, tls=tls, proxies=proxies)
        self._methods, self._call_limits = methods, limits

    def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket.

        Raises:
            UsageError: The socket cannot listen.
        """
        try:
            self.listen(bound, preface=PREFACE)
        except OSError as error:
            raise UsageError(f"cannot listen for gRPC: {error}. Set grpcServerPort") from error

    def new_connection(
        self, client: tuple[str, int], on_open: Callable[[], None]
    ) -> GrpcConnection:
        """Return the protocol of a new connection."""
        return GrpcConnection(
            self._methods,
            limits=self._call_limits,
            memory=self.memory,
            notices=self.notices,
            address=client,
            on_open=partial(self.opened, begun=on_open),
            on_lost=self.lost,
        )

    async def stop(self) -> None:
        """Stop listening, finish the calls in flight, close every connection."""
        self.close_listeners()
        wait_s = self._call_limits.close_wait_s
        await asyncio.gather(*(each.drain(wait_s) for each in self.connections))
        await self.finish_sweep()
