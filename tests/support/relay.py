"""TCP relay on loopback that damages the bytes of the server, or answers instead of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from tests.support.free_ports import LOOPBACK

READ_BYTES = 1 << 16


class Relay:
    """Relay to a port on loopback; a context manager.

    Args:
        target_port: Port of the server.
    Attributes:
        port: Port of the relay.
        change: Returns the bytes that the client receives instead of those that the server sent.
        serve: Serves a connection instead of the server; None: the server does.
        served: Number of connections that `serve` has served.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.serve: Callable[[socket.socket], None] | None = None
        self.served = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """`host:port` of the relay."""
        return f"{LOOPBACK}:{self.port}"

    def replace_server(self, serve: Callable[[socket.socket], None] | None) -> None:
        """Serve new connections by a function, None: by the server; close the open ones."""
        self.serve = serve
        with self._lock:
            opened = list(self._open)
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="relay", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.replace_server(None)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(OSError))
            self._keep(stack, client)
            if self.serve is not None:
                self.served += 1
                self.serve(client)
                return
            server = socket.create_connection((LOOPBACK, self._target_port))
            self._keep(stack, server)
            back = threading.Thread(target=self._copy, args=(server, client, True), daemon=True)
            back.start()
            self._copy(client, server, False)
            back.join()

    def _keep(self, stack: contextlib.ExitStack, each: socket.socket) -> None:
        stack.enter_context(each)
        with self._lock:
            self._open.add(each)
        stack.callback(self._drop, each)

    def _drop(self, each: socket.socket) -> None:
        with self._lock:
            self._open.discard(each)

    def _copy(self, source: socket.socket, target: socket.socket, is_changed: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                target.sendall(self.change(data) if is_changed else data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
