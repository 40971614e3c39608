"""Addresses in values of keys."""

from __future__ import annotations

from duemq_common.errors import ConfigError
from duemq_common.host_port import split_address


def parse_addresses(key: str, text: str) -> list[tuple[str, int]]:
    """Parse `host:port;host:port`.

    Raises:
        ConfigError: An entry is malformed, or is an address that no host can have.
    """
    addresses = []
    for word in map(str.strip, text.replace(",", ";").split(";")):
        if not word:
            continue
        try:
            _, port = split_address(word)
        except ValueError as error:
            raise ConfigError(key, text, str(error)) from None
        addresses.append((word.rpartition(":")[0], port))
    return addresses
