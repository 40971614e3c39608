"""Access check without accounts: administration only from this machine and allowed networks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duemq.auth.request_table import ROWS
from duemq.net.allowed_networks import parse_sources
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request

KEY: Final = "administerFrom"
ADMINISTRATIVE: Final = frozenset(
    code for code, row in ROWS.items() if row.changes_resources and not row.is_between_members
)


class LocalAdministration:
    """Access check that refuses administrative requests of other machines (an `AccessCheck`).

    Args:
        networks: `administerFrom`: allowed networks, in addition to loopback.
        own_addresses: IP addresses of this machine.
    Raises:
        ConfigError: A word of `networks` is not a network.
    """

    def __init__(self, networks: str, own_addresses: Iterable[str]) -> None:
        self._sources = parse_sources(KEY, networks, own_addresses)

    def __call__(self, request: Request) -> None:
        """Check a request.

        Raises:
            RequestError: With NO_PERMISSION.
        """
        if request.code not in ADMINISTRATIVE or request.peer is None:
            return
        address = request.peer.address[0]
        if not self._sources.allows(address):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"administrative request {request.code} is refused from {address}: there are no "
                f"accounts, and {KEY} does not name the address. Run it on the "
                "broker's machine, "
                "configure accounts (authenticationEnabled), or add the address "
                f"to {KEY}",
            )
