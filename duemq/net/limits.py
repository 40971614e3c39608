"""Limits of a remoting endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from duemq.net.codec import FRAME_BYTES_MAX
from duemq.net.memory_budget import LIMIT_BYTES

RECORD_REST_BYTES = (
    128 << 10
)  # of a message in an answer, without its body: properties, topic, heads


def body_bytes_max(configured: int) -> int:
    """Return the longest body of a message that still fits into the answer to a pull.

    Args:
        configured: maxMessageSize, which may exceed a frame.
    """
    return min(configured, FRAME_BYTES_MAX - RECORD_REST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingLimits:
    """Limits of one endpoint."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    connections_max: int = 20_000
    backlog: int = 1_024  # connections waiting to be accepted
    requests_in_flight_max: int = 8_192  # per connection; beyond: SYSTEM_BUSY
    calls_in_flight_max: int = 4_096  # our own requests to one peer
    write_buffer_bytes_max: int = 8 << 20  # beyond: reading from this peer pauses
    notices_bytes_max: int = 1 << 18  # unread by a peer; beyond: it gets no one-way requests
    memory_bytes_max: int = LIMIT_BYTES  # of all connections together
    idle_ms_max: int = 120_000  # serverChannelMaxIdleTimeSeconds
    sweep_ms: int = 10_000
    close_wait_s: float = 5.0  # for requests in hand when the server stops


class _Bounded(Protocol):
    """A section with the options of a port."""

    @property
    def connections_max(self) -> int: ...
    @property
    def socket_backlog(self) -> int: ...
    @property
    def channel_idle_s(self) -> int: ...


def limits_of(config: _Bounded) -> RemotingLimits:
    """Return the limits of the ports of a broker or a name server."""
    return RemotingLimits(
        connections_max=config.connections_max,
        backlog=config.socket_backlog,
        idle_ms_max=config.channel_idle_s * 1_000,
    )
