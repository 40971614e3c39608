"""Socket bound before the store opens, so that a port in use is reported first."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from message_store.errors import UsageError


@contextmanager
def bind(host: str, port: int, *, key: str = "listenPort") -> Iterator[socket.socket]:
    """Yield a socket bound to a port that does not listen yet; port 0: any free port.

    Args:
        key: Configuration key of the port, for the error.
    Raises:
        UsageError: The port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        try:
            bound.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror}. Is another broker running? "
                f"Set {key} to a free port"
            ) from error
        yield bound
