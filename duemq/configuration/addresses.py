"""Addresses in values of keys."""

from __future__ import annotations

from duemq_common.errors import ConfigError
from duemq_common.host_port import split_address


def parse_addresses(key: str, text: str) -> list[str]:
    """Return the addresses in the value of a key, `host:port;host:port`.

    Raises:
        ConfigError: An entry is malformed, or is an address that no host can have.
    """
    addresses = [word.strip() for word in text.replace(",", ";").split(";") if word.strip()]
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError(key, text, str(error)) from None
    return addresses
