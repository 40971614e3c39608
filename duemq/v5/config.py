"""Configuration of the gRPC service for v5 clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class V5Config:
    """Configuration of the gRPC service.

    Attributes:
        host, port: Registered address of this broker for v5 clients.
        body_bytes_max: Maximum bytes of a message's body.
        type_check: Whether a topic accepts only messages of its type.
        permission: Permission of the broker: 2 write, 4 read.
    """

    host: str
    port: int
    body_bytes_max: int
    type_check: bool
    permission: int
