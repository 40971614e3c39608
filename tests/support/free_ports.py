"""Free ports on the loopback interface."""

from __future__ import annotations

import os
import random
import socket

LOOPBACK = "127.0.0.1"
PORT_FIRST, PORT_END = 20_000, 30_000  # below the range that the kernel assigns to connections
WORKERS = 4  # maximum number of test processes, each with its own ports
PORTS_OF_WORKER = (PORT_END - PORT_FIRST) // WORKERS
TRIES_MAX = 200
_returned: set[int] = set()  # a server binds its ports later, and again after each stop


def free_ports(count: int) -> list[int]:
    """Return `count` consecutive free ports in ascending order; each call returns new ports.

    Raises:
        OSError: There is no such range of free ports.
    """
    if len(_returned) > PORTS_OF_WORKER // 2:
        _returned.clear()
    start = PORT_FIRST + _worker() % WORKERS * PORTS_OF_WORKER
    for _ in range(TRIES_MAX):
        first = random.randrange(start, start + PORTS_OF_WORKER - count)
        ports = range(first, first + count)
        if _returned.isdisjoint(ports) and all(map(_can_bind, ports)):
            _returned.update(ports)
            return list(ports)
    raise OSError(f"no {count} consecutive free ports between {PORT_FIRST} and {PORT_END}")


def listening(port: int) -> bool:
    """Return whether a connection to `port` on loopback is accepted."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def _worker() -> int:
    """Return the number of this process among the workers of pytest-xdist."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
