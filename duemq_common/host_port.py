"""Addresses of servers as text: `host:port`."""

from __future__ import annotations

from typing import Final

PORT_MAX: Final = 65_535
PORT_DIGITS_MAX: Final = 5


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` (IPv6: `[::1]:9876`) into host and port, 1 to `PORT_MAX`.

    Raises:
        ValueError: The text has another form, or is an address that no server can have.
    """
    host, _, port = address.strip().rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
    if not host or not is_number or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"{address!r} is not host:port")
    try:
        host.encode("idna")  # as for the resolver, whose UnicodeError is no OSError
    except UnicodeError as error:
        raise ValueError(f"{address!r} is not host:port: {error}") from None
    return host.strip("[]"), int(port)
