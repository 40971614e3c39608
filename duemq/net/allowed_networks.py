"""Networks that may send certain requests, as configured for a name server or a proxy port.

any                        every address
loopback                   this machine: loopback, and the machine's own addresses
10.0.0.0/8;192.168.1.7     networks and addresses, separated by `;`
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from msgspec import Struct

from duemq_common.codes import ResponseCode
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Request, ip_address

ANY, LOOPBACK = "any", "loopback"
WORDS_MAX = 256
LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Sources(Struct, frozen=True):
    """Networks from which one kind of request is accepted.

    Attributes:
        key: Configuration key, for the refusal text.
        networks: Allowed networks, in addition to loopback.
        every: Whether every address is allowed.
    """

    key: str
    networks: tuple[Network, ...] = ()
    every: bool = False

    def allows(self, address: str) -> bool:
        """Return whether requests from an IP address are accepted."""
        if self.every:
            return True
        try:
            source = ip_address(address)
        except ValueError:
            return False
        return source.is_loopback or any(source in network for network in self.networks)

    def check(self, request: Request, operation: str) -> None:
        """Check the address of a request's peer; an in-process request has none and is allowed.

        Raises:
            RequestError: The address is not allowed: NO_PERMISSION.
        """
        if request.peer is None or self.allows(request.peer.address[0]):
            return
        text = (
            f"{operation} is refused: {self.key} does not name {request.peer.address[0]}. Run it "
            f"on the name server's machine, or add the address to {self.key} there"
        )
        raise RequestError(ResponseCode.NO_PERMISSION, text)


def parse_sources(key: str, text: str, own_addresses: Iterable[str] = ()) -> Sources:
    """Parse a configuration value.

    Args:
        own_addresses: IP addresses of this machine, which `loopback` includes.
    Raises:
        ConfigError: A word is not `any`, `loopback`, an address or a network.
    """
    words = [word.strip() for word in text.replace(",", ";").split(";") if word.strip()]
    if len(words) > WORDS_MAX:
        raise ConfigError(key, text[:64], f"has {len(words)} networks; the limit is {WORDS_MAX}")
    own = [ipaddress.ip_network(address.partition("%")[0]) for address in own_addresses]
    named = [_network(key, word) for word in words if word not in (ANY, LOOPBACK)]
    return Sources(key, (*own, *named), ANY in words)


def trusted_proxies(key: str, text: str) -> list[str]:
    """Return the networks of HTTP proxies, loopback included; empty if none is configured.

    Raises:
        ConfigError: A word is not `loopback`, an address or a network.
    """
    sources = parse_sources(key, text)
    if sources.every:
        raise ConfigError(key, text, f"must not be `{ANY}`: every client could give any address")
    return [*LOOPBACK_NETWORKS, *map(str, sources.networks)] if text.strip() else []


def _network(key: str, word: str) -> Network:
    try:
        return ipaddress.ip_network(word, strict=False)
    except ValueError:
        reason = "must be `any`, `loopback`, or networks such as 10.0.0.0/8, separated by `;`"
        raise ConfigError(key, word, reason) from None
