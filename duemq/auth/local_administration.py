"""Administration without accounts: only from this machine, and from networks that are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from delivery.plugin import Request
from duemq.auth.model import Action
from duemq.auth.request_rules import DECISIONS, OWN_RULES, RULES
from duemq.net.allowed_networks import parse_sources
from duemq.net.codes import ResponseCode
from message_store.errors import RequestError

KEY: Final = "administerFrom"
OF_GROUPS: Final = frozenset({906, 1008})
"""What controllers and members of a group send; the handlers only read, or ask the controller."""
ADMINISTRATIVE: Final = (
    frozenset(
        code
        for code, rule in {**RULES, **OWN_RULES}.items()
        if rule.action in {Action.CREATE, Action.UPDATE, Action.DELETE}
    )
    - set(DECISIONS)
    - OF_GROUPS
)
"""Request codes that create, change or delete what other clients use; decisions are about an
application's own messages."""


class LocalAdministration:
    """Refuses administrative requests of other machines (an `AccessCheck`).

    Args:
        networks: `administerFrom`: networks that may administer, in addition to loopback.
        own_addresses: IP addresses of this machine.
    Raises:
        ConfigError: A word of `networks` is no network.
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
                f"request {request.code} administers the broker, and {address} may not: there are "
                f"no accounts, and {KEY} does not name it. Ask from the broker's machine, "
                f"configure accounts (authenticationEnabled), or add the address to {KEY}",
            )
