"""Values of the broker's configuration that v5 calls depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """What v5 calls depend on.

    Attributes:
        host: Address that routes announce; empty: the one that the client has used.
        port: Port that routes announce.
        body_bytes_max: Maximum bytes of a message's body.
        type_check: Whether topics accept only messages of their type.
        permission: Permission of the broker: 2 write, 4 read.
    """

    host: str
    port: int
    body_bytes_max: int
    type_check: bool
    permission: int
