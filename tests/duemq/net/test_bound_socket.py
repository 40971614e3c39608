"""Ports that cannot be bound: the error names one key and the remedy for the cause."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from duemq.net.bound_socket import bind, cannot_listen
from duemq_common.errors import UsageError

pytestmark = pytest.mark.finding("3U6")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EADDRINUSE, "another process uses the port: stop it, or set grpcServerPort"),
        (errno.EADDRNOTAVAIL, "this machine does not have the address: set bindAddress"),
        (errno.EAFNOSUPPORT, "this machine does not have the address: set bindAddress"),
        (errno.EACCES, "set grpcServerPort to a higher port"),
        (errno.ENOBUFS, "check grpcServerPort and bindAddress"),
    ],
)
def test_the_remedy_fits_the_cause(number: int, text: str) -> None:
    error = cannot_listen("::1", 80, OSError(number, os.strerror(number)), "grpcServerPort")
    assert text in str(error)
    assert "listenPort" not in str(error)


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match="another process uses the port"),
            bind("127.0.0.1", port, key="haListenPort"),
        ):
            pass


def test_an_address_of_another_machine() -> None:
    with pytest.raises(UsageError, match="set bindAddress"), bind("192.0.2.1", 0):
        pass
