"""Limits of a remoting endpoint."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from duemq.net.codec import FRAME_BYTES_MAX
from duemq.net.memory import LIMIT_BYTES

RECORD_OVERHEAD_BYTES = 128 << 10  # properties, topic and headers of a message in a pull response


def body_bytes_max(configured: int) -> int:
    """Return the maximum body size in bytes of a message that fits into a pull response.

    Args:
        configured: maxMessageSize in bytes, which may exceed a frame.
    """
    return min(configured, FRAME_BYTES_MAX - RECORD_OVERHEAD_BYTES)


class RemotingLimits(Struct, frozen=True, kw_only=True):
    """Limits of one endpoint."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    connections_max: int = 20_000
    backlog: int = 1_024  # connections that are not accepted yet
    requests_in_flight_max: int = 8_192  # per connection; above: SYSTEM_BUSY
    calls_in_flight_max: int = 4_096  # outgoing requests per peer
    write_buffer_bytes_max: int = 8 << 20  # unread by the peer; above: reading from it pauses
    notices_bytes_max: int = 1 << 18  # unread by the peer; above, one-way requests are dropped
    memory_bytes_max: int = LIMIT_BYTES  # total of all connections
    idle_ms_max: int = 120_000  # serverChannelMaxIdleTimeSeconds
    sweep_ms: int = 10_000
    close_wait_s: float = 5.0  # for requests in flight when the server stops


class _Bounded(Protocol):
    """Configuration section with the options of a port."""

    @property
    def connections_max(self) -> int: ...
    @property
    def socket_backlog(self) -> int: ...
    @property
    def channel_idle_s(self) -> int: ...


def limits_of(config: _Bounded) -> RemotingLimits:
    """Return the connection limits of a broker or name server section."""
    return RemotingLimits(
        connections_max=config.connections_max,
        backlog=config.socket_backlog,
        idle_ms_max=config.channel_idle_s * 1_000,
    )
