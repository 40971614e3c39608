"""Free ports on loopback, and whether somebody listens on one."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
PORT_FIRST, PORT_END = 20_000, 30_000  # below the range the kernel hands out to connections
TRIES_MAX = 200


def free_ports(count: int) -> list[int]:
    """Return `count` neighbouring ports nobody listens on, lowest first.

    Raises:
        OSError: No such run of ports was found.
    """
    for _ in range(TRIES_MAX):
        first = random.randrange(PORT_FIRST, PORT_END - count)
        if all(_can_bind(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise OSError(f"no {count} neighbouring free ports between {PORT_FIRST} and {PORT_END}")


def listening(port: int) -> bool:
    """Return whether a connection to `port` on loopback is accepted."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
