"""Listening socket that selects the protocol of a connection by its first bytes.

    accept --> limit --> PROXY header? --> first byte --+--> plaintext connection
                                                        +--> TLS handshake --> connection

A TLS handshake begins with the byte 0x16, which begins no frame. The listener peeks at the first
byte and consumes only a PROXY header. A peer that sends nothing uses a socket but no buffers; it
counts as a connection and is closed when idle.

Source: NettyRemotingServer.HandshakeHandler, TlsModeHandler
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from duemq.net import codec, proxy_protocol
from duemq.net.allowed_networks import Sources
from duemq.net.notices import PeerNotices
from duemq.net.tls import ServerTls
from duemq_common.clock import AwakeTime
from duemq_common.errors import FrameError

TLS_HANDSHAKE: Final = 0x16
ACCEPTED_PER_TURN_MAX: Final = 128
ACCEPT_PAUSE_S: Final = 1.0  # without a free descriptor, accept would fail again at once
HANDSHAKE_S: Final = 10.0

Address = tuple[str, int]


class AcceptedSocket:
    """Accepted socket whose protocol is not known yet.

    Attributes:
        socket: The accepted socket, non-blocking.
        peer: Address of the socket's other end.
        client: Address of the client, from the PROXY header if there is one.
        since_ms: `AwakeTime` in ms at which the socket was accepted.
    """

    __slots__ = ("client", "header", "peer", "since_ms", "socket", "task")

    def __init__(self, accepted: socket.socket, peer: Address, since_ms: int) -> None:
        self.socket, self.peer, self.client, self.since_ms = accepted, peer, peer, since_ms
        self.header = b""
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"


NewConnection = Callable[[Address, Callable[[], None]], asyncio.BaseProtocol]
"""Returns the protocol of a new connection, which calls the function when connected."""


class Listener:
    """One listening port.

    Args:
        listening: Listening socket; closed by the listener.
        has_room: Returns whether another connection may be opened; logs the reason if not.
        new_connection: Returns the protocol of a new connection.
        tls: Mode and certificates; None: plaintext only.
        proxies: Peers whose PROXY header is trusted.
        notices: Log lines about peers.
        close_wait_s: Time limit for closing a TLS connection.
        preface: First bytes of the plaintext protocol if a PROXY header begins with the same byte;
            otherwise empty.
    """

    def __init__(
        self,
        listening: socket.socket,
        has_room: Callable[[AcceptedSocket], bool],
        new_connection: NewConnection,
        *,
        time: AwakeTime,
        tls: ServerTls | None,
        proxies: Sources,
        notices: PeerNotices,
        close_wait_s: float,
        preface: bytes = b"",
    ) -> None:
        self._listening, self._time = listening, time
        self._has_room, self._new_connection = has_room, new_connection
        self._tls, self.proxies, self._notices = tls, proxies, notices
        self._close_wait_s, self._preface = close_wait_s, preface
        self._loop = asyncio.get_running_loop()
        self._openings: set[AcceptedSocket] = set()
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def __len__(self) -> int:
        """Return the number of accepted sockets without a connection."""
        return len(self._openings)

    @property
    def port(self) -> int:
        """Number of the listening port."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and close accepted sockets without a connection."""
        self._closed = True
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for opening in list(self._openings):
            if opening.task is not None:
                opening.task.cancel()
            else:
                self._drop(opening)

    def close_idle(self, before_ms: int) -> None:
        """Close sockets accepted before `before_ms` that are still without a connection."""
        for opening in list(self._openings):
            if opening.task is None and opening.since_ms <= before_ms:
                self._drop(opening)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN_MAX):
            try:
                accepted, name = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._notices.refused("cannot accept a connection: %s; retrying", error)
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            accepted.setblocking(False)
            opening = AcceptedSocket(accepted, name[:2], self._time.now_ms())
            if not self._has_room(opening):
                accepted.close()
                continue
            self._openings.add(opening)
            self._loop.add_reader(accepted.fileno(), self._read, opening)

    def _accept_again(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _read(self, opening: AcceptedSocket) -> None:
        """Read the first bytes, and open the connection when they are complete."""
        try:
            first = self._first_byte(opening)
            if first is not None:
                self._begin(opening, first)
        except (BlockingIOError, InterruptedError):
            return
        except FrameError as error:
            self._notices.broken("%r: %s; connection closed", opening, error)
            self._drop(opening)
        except OSError:
            self._drop(opening)

    def _first_byte(self, opening: AcceptedSocket) -> int | None:
        """Return the first byte after a PROXY header; None: the peer has disconnected.

        Raises:
            FrameError: The PROXY header is malformed, or the peer may not send one.
            OSError: The socket failed; BlockingIOError: more bytes must arrive first.
        """
        if not opening.header:
            data = opening.socket.recv(1, socket.MSG_PEEK)
            if not data:
                self._drop(opening)
                return None
            if data[0] not in proxy_protocol.FIRST_BYTES or self._has_preface(opening):
                return data[0]
            opening.header = opening.socket.recv(1)
        while (missing := self._header_missing(opening)) > 0:
            data = opening.socket.recv(missing)
            if not data:
                self._drop(opening)
                return None
            opening.header += data
        self._use_header(opening)
        data = opening.socket.recv(1, socket.MSG_PEEK)
        if not data:
            self._drop(opening)
            return None
        return data[0]

    def _has_preface(self, opening: AcceptedSocket) -> bool:
        """Return whether the received bytes are the start of the plaintext preface."""
        if not self._preface:
            return False
        data = opening.socket.recv(len(self._preface), socket.MSG_PEEK)
        return self._preface.startswith(data)

    def _header_missing(self, opening: AcceptedSocket) -> int:
        try:
            return proxy_protocol.bytes_missing(opening.header)
        except FrameError:
            if not proxy_protocol.has_prefix(opening.header):
                # another protocol, such as `POST / HTTP/1.1`: the codec raises a specific error
                codec.check_length(int.from_bytes(opening.header[:4].ljust(4, b" "), "big"))
            raise

    def _use_header(self, opening: AcceptedSocket) -> None:
        if not self.proxies.allows(opening.peer[0]):
            raise FrameError(
                f"the peer sent a PROXY header, but {self.proxies.key} does not name its address"
            )
        opening.client = proxy_protocol.client_address(opening.header) or opening.peer

    def _begin(self, opening: AcceptedSocket, first: int) -> None:
        """Open the connection.

        Raises:
            FrameError: tls.server.mode does not allow the protocol.
        """
        is_tls = first == TLS_HANDSHAKE
        if is_tls and (self._tls is None or self._tls.is_disabled):
            raise FrameError(
                "the peer started a TLS handshake, but tls.server.mode=disabled; switch TLS off in "
                "the client, or set tls.server.mode=permissive"
            )
        if not is_tls and self._tls is not None and self._tls.is_enforced:
            raise FrameError(
                "the peer connected in plaintext, but tls.server.mode=enforcing; switch TLS on in "
                "the client (Java: -Dtls.enable=true)"
            )
        self._loop.remove_reader(opening.socket.fileno())
        work = self._connect(opening, is_tls=is_tls)
        opening.task = self._loop.create_task(work, name="connection begins")
        opening.task.add_done_callback(partial(self._begun, opening))

    def _begun(self, opening: AcceptedSocket, task: asyncio.Task[None]) -> None:
        """Close the socket if the task was cancelled, possibly before it ran."""
        if task.cancelled():
            self._openings.discard(opening)
            opening.socket.close()

    async def _connect(self, opening: AcceptedSocket, *, is_tls: bool) -> None:
        context: ssl.SSLContext | None = None
        limits: dict[str, float] = {}
        opened = partial(self._openings.discard, opening)
        try:
            if is_tls:
                assert self._tls is not None
                context = await self._tls.context()
                limits = {
                    "ssl_handshake_timeout": HANDSHAKE_S,
                    "ssl_shutdown_timeout": self._close_wait_s,
                }
            await self._loop.connect_accepted_socket(
                lambda: self._new_connection(opening.client, opened),
                opening.socket,
                ssl=context,
                **limits,
            )
        except BaseException as error:
            opening.socket.close()
            if not isinstance(error, Exception):
                raise
            if is_tls or not isinstance(error, OSError):
                step = "TLS handshake" if is_tls else "connection"
                self._notices.broken("%r: %s failed: %s", opening, step, error or repr(error))
        finally:
            self._openings.discard(opening)

    def _drop(self, opening: AcceptedSocket) -> None:
        self._openings.discard(opening)
        self._loop.remove_reader(opening.socket.fileno())
        opening.socket.close()
