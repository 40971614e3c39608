"""Networks from which a name server accepts registrations and administrative requests.

any                        every address
loopback                   this machine: loopback, and the machine's own addresses
10.0.0.0/8;192.168.1.7     networks and addresses, separated by `;`
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from delivery.plugin import Request
from duemq.net.codes import ResponseCode
from message_store.errors import ConfigError, RequestError

ANY, LOOPBACK = "any", "loopback"
WORDS_MAX = 256

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Sources:
    """The addresses that one kind of request is taken from.

    Attributes:
        key: configuration key, for the answer to a refused request.
        networks: addresses and networks; loopback addresses are always among them.
        every: every address is.
    """

    key: str
    networks: tuple[Network, ...] = ()
    every: bool = False

    def allows(self, address: str) -> bool:
        """Return whether requests from an IP address are taken."""
        if self.every:
            return True
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        found = getattr(found, "ipv4_mapped", None) or found
        return found.is_loopback or any(found in network for network in self.networks)

    def check(self, request: Request, what: str) -> None:
        """Refuse a request from another network; a request of this process has no peer.

        Raises:
            RequestError: With NO_PERMISSION.
        """
        if request.peer is None or self.allows(request.peer.address[0]):
            return
        text = (
            f"{what} is not taken from {request.peer.address[0]}: {self.key} does not name it. "
            f"Ask from the name server's machine, or add the address to {self.key} there"
        )
        raise RequestError(ResponseCode.NO_PERMISSION, text)


def parse_sources(key: str, text: str, own_addresses: Iterable[str] = ()) -> Sources:
    """Return the addresses that a value names.

    Args:
        own_addresses: IP addresses of this machine, which `loopback` means as well.
    Raises:
        ConfigError: A word is neither `any`, `loopback`, an address nor a network.
    """
    words = [word.strip() for word in text.replace(",", ";").split(";") if word.strip()]
    if len(words) > WORDS_MAX:
        raise ConfigError(key, text[:64], f"names {len(words)} networks; the limit is {WORDS_MAX}")
    own = [ipaddress.ip_network(address.partition("%")[0]) for address in own_addresses]
    named = [_network(key, word) for word in words if word not in (ANY, LOOPBACK)]
    return Sources(key, (*own, *named), ANY in words)


def _network(key: str, word: str) -> Network:
    try:
        return ipaddress.ip_network(word, strict=False)
    except ValueError:
        why = "must be `any`, `loopback`, or networks such as 10.0.0.0/8, separated by `;`"
        raise ConfigError(key, word, why) from None
