"""Addresses in values of keys."""

from __future__ import annotations

from typing import Final

from duemq_common.errors import ConfigError

PORT_MAX: Final = 65_535


def parse_addresses(key: str, text: str) -> list[tuple[str, int]]:
    """Parse `host:port;host:port`.

    Raises:
        ConfigError: An entry is malformed, or is an address that no host can have.
    """
    addresses = []
    for word in map(str.strip, text.replace(",", ";").split(";")):
        if not word:
            continue
        host, _, port = word.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
            raise ConfigError(key, text, f"{word!r} is not host:port")
        try:
            host.encode("idna")  # as for the resolver, whose UnicodeError is no OSError
        except UnicodeError as error:
            raise ConfigError(key, text, f"{word!r} is not host:port: {error}") from None
        addresses.append((host, int(port)))
    return addresses
