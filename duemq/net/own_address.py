"""Address under which other machines reach this one."""

from __future__ import annotations

import socket
from typing import Final

# Nothing is sent: connecting a datagram socket only selects the local address.
DOCUMENTATION_ADDRESS: Final = ("192.0.2.1", 9)


def own_address(bind_address: str) -> str:
    """Return the address to advertise to other machines; 127.0.0.1 without a network."""
    if bind_address not in ("0.0.0.0", "::"):
        return bind_address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(DOCUMENTATION_ADDRESS)
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address
