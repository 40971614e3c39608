"""Socket bound before the store opens, so that a port in use is reported first."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from duemq_common.errors import UsageError


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
            raise cannot_listen(host, port, error, key) from error
        yield bound


def cannot_listen(host: str, port: int, error: OSError, key: str) -> UsageError:
    """Return the error of a port that cannot be bound, with the remedy for its cause.

    Args:
        key: Configuration key of the port.
    """
    match error.errno:
        case errno.EADDRINUSE:
            remedy = f"another process uses the port: stop it, or set {key} to a free port"
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            remedy = "this machine does not have the address: set bindAddress to one that it has"
        case errno.EACCES:
            remedy = f"ports below 1024 need privileges: set {key} to a higher port"
        case _:
            remedy = f"check {key} and bindAddress"
    return UsageError(f"cannot listen on {host or '*'}:{port} ({error.strerror}): {remedy}")
