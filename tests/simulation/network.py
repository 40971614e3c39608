"""Simulated network: hosts, sockets, and connections between them.

A connection consists of two pipes. A pipe delivers its segments in order, each after a latency; as
in TCP, a lost segment is retransmitted and delays those after it. Connections are independent of
each other. A direction between two hosts can be blocked: segments then wait, and connections time
out.

    kill -9     the kernel closes the sockets; peers read the end of the stream
    power cut   the sockets vanish; peers detect it only by a reset after their next segment, or by
                a timeout of their own
    pause       the kernel keeps accepting connections and bytes, up to the size of its buffers
"""

from __future__ import annotations

import errno
import heapq
import itertools
import random
import socket
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

BUFFER_BYTES: Final = 64 << 10
SEGMENT_BYTES: Final = 8 << 10
FIRST_FD: Final = 10
FIRST_PORT: Final = 40_000
RESEND_US: Final = 200_000
CONNECT_US: Final = 1_000_000
LOOPBACK: Final = "127.0.0.1"
FIN, RESET = b"FIN", b"RST"


class Timeline:
    """Simulated time and scheduled events.

    Attributes:
        now_us: Time since the start of the run, in microseconds.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    def at(self, time_us: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(time_us, self.now_us), next(self._serial), call))

    def after(self, delay_us: int, call: Callable[[], None]) -> None:
        self.at(self.now_us + delay_us, call)

    @property
    def next_us(self) -> int | None:
        return self._events[0][0] if self._events else None

    def run_due(self) -> bool:
        """Run the next event if it is due; return whether there was one."""
        if not self._events or self._events[0][0] > self.now_us:
            return False
        heapq.heappop(self._events)[2]()
        return True


@dataclass
class NetworkQuality:
    """Properties of the network.

    Attributes:
        latency_us: Minimum and maximum latency, in microseconds.
        loss: Share of lost segments.
        reset_us: Minimum and maximum time until a blocked connection is reset, in microseconds.
    """

    latency_us: tuple[int, int] = (50, 2_000)
    loss: float = 0.0
    reset_us: tuple[int, int] = (5_000_000, 30_000_000)


class Host:
    """Network stack of one machine.

    Attributes:
        is_up: Whether the machine is running.
        generation: Number of ended processes; sockets of earlier generations are dead.
    """

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.is_up = True
        self.generation = 0
        self.sockets: dict[int, SimSocket] = {}
        self._free: list[int] = []
        self._next_fd = FIRST_FD
        self.changed = True  # a socket may have become ready

    def new_socket(self) -> SimSocket:
        fd = heapq.heappop(self._free) if self._free else self._next_fd
        self._next_fd = max(self._next_fd, fd + 1)
        sock = self.sockets[fd] = SimSocket(self, fd)
        return sock

    def forget(self, sock: SimSocket) -> None:
        if self.sockets.pop(sock.fd, None) is not None:
            heapq.heappush(self._free, sock.fd)

    def end_process(self, *, is_quiet: bool) -> None:
        """Close the sockets of the process; `is_quiet`: without notifying peers."""
        for sock in list(self.sockets.values()):
            sock.kill(is_quiet=is_quiet)
        self.sockets, self._free, self._next_fd = {}, [], FIRST_FD
        self.generation += 1


@dataclass
class Pipe:
    """Direction of a connection."""

    source: SimSocket
    target: SimSocket
    segments: deque[bytes | memoryview] = field(default_factory=deque)
    bytes_in_flight: int = 0
    is_moving: bool = False
    blocked_since_us: int | None = None
    is_dropped: bool = False


class SimSocket:
    """Simulated socket with the methods of `socket.socket` that the product calls."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, 0

    def __init__(self, host: Host, fd: int) -> None:
        self.host, self.fd = host, fd
        self.name: tuple[str, int] = (LOOPBACK, 0)
        self.peer_name: tuple[str, int] = (LOOPBACK, 0)
        self.out: Pipe | None = None
        self.arrived: deque[bytes] = deque()
        self.unread_bytes = 0
        self.has_end = self.is_closed = self.is_dead = self.is_connecting = False
        self.error = 0
        self.backlog: deque[SimSocket] | None = None

    # -- interface of socket.socket -------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self.is_closed else self.fd

    def setsockopt(self, *options: Any) -> None: ...
    def setblocking(self, flag: bool) -> None: ...
    def gettimeout(self) -> float:
        return 0.0

    def getsockopt(self, level: int, option: int) -> int:
        found, self.error = self.error, 0
        return found

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def getpeername(self) -> tuple[str, int]:
        return self.peer_name

    def bind(self, address: tuple[str, int]) -> None:
        if address[1] in self.host.network.listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.name = address

    def listen(self, backlog: int = 0) -> None:
        self.backlog = deque()
        self.host.network.listening[self.name[1]] = self

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError
        sock = self.backlog.popleft()
        return sock, sock.peer_name

    def connect(self, address: tuple[str, int]) -> None:
        if self.is_dead:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        self.is_connecting, self.peer_name = True, address
        self.host.network.connect(self, address[1])
        raise BlockingIOError

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check()
        if not self.arrived:
            if self.has_end:
                return b""
            raise BlockingIOError
        data = self.arrived[0][:size]
        if not flags & socket.MSG_PEEK:
            rest = self.arrived.popleft()[size:]
            if rest:
                self.arrived.appendleft(rest)
            self.unread_bytes -= len(data)
            self.host.network.on_room(self)
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer)
        data = self.recv(size or len(view))
        view[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        self._check()
        if self.out is None:
            raise BrokenPipeError(errno.EPIPE, "not connected")
        room = self.room
        if room <= 0:
            raise BlockingIOError
        part = bytes(memoryview(data)[:room])
        self.host.network.send(self.out, part)
        return len(part)

    def sendmsg(self, parts: Any) -> int:
        return self.send(b"".join(bytes(part) for part in parts))

    def shutdown(self, how: int) -> None:
        if self.out is not None and not self.is_dead:
            self.host.network.send(self.out, FIN, is_control=True)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self.backlog is not None and self.host.network.listening.get(self.name[1]) is self:
            del self.host.network.listening[self.name[1]]
            for waiting in self.backlog:
                waiting.close()
        if self.out is not None and not self.is_dead:
            self.host.network.send(self.out, FIN, is_control=True)
        if not self.is_dead:
            self.host.forget(self)

    def detach(self) -> int:
        return self.fd

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- interface for the network --------------------------------------------------------------

    @property
    def room(self) -> int:
        if self.out is None:
            return 0
        return BUFFER_BYTES - self.out.bytes_in_flight - self.out.target.unread_bytes

    @property
    def is_readable(self) -> bool:
        return bool(self.arrived or self.has_end or self.error or self.backlog or self.is_dead)

    @property
    def is_writable(self) -> bool:
        if self.is_connecting:
            return False
        return bool(self.error or self.is_dead or self.room > 0)

    def _check(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self.is_dead:
            raise ConnectionResetError(errno.ECONNRESET, "the process has ended")
        if self.error:
            found, self.has_end, self.out = self.error, True, None
            self.error = 0
            raise OSError(found, errno.errorcode[found])

    def fail(self, error: int) -> None:
        self.error, self.is_connecting = error, False
        self.host.changed = True

    def kill(self, *, is_quiet: bool) -> None:
        """End the socket with its process."""
        if is_quiet and self.out is not None:
            self.out.is_dropped = True
        if self.backlog is not None:
            self.host.network.listening.pop(self.name[1], None)
            for waiting in self.backlog:
                waiting.kill(is_quiet=is_quiet)
        if self.out is not None and not is_quiet and not self.is_closed:
            self.host.network.send(self.out, FIN, is_control=True)
        self.is_dead = True


class Network:
    """Network between hosts.

    Attributes:
        blocked: Blocked directions (from, to), by names of hosts.
        listening: Listening sockets by port.
        trace: Called with each sent segment.
    """

    def __init__(self, timeline: Timeline, chance: random.Random, quality: NetworkQuality) -> None:
        self.timeline, self._chance, self.quality = timeline, chance, quality
        self.blocked: set[tuple[str, str]] = set()
        self.listening: dict[int, SimSocket] = {}
        self.owners: dict[int, Host] = {}  # host of each port
        self._ports = itertools.count(FIRST_PORT)
        self.trace: Callable[[str], None] = lambda text: None

    def _latency_us(self) -> int:
        return self._chance.randint(*self.quality.latency_us)

    def connect(self, sock: SimSocket, port: int) -> None:
        sock.name = (LOOPBACK, next(self._ports))
        self.timeline.after(self._latency_us(), lambda: self._arrive(sock, port))

    def _arrive(self, sock: SimSocket, port: int) -> None:
        if sock.is_closed or sock.is_dead:
            return
        owner = self.owners[port]
        both = {(sock.host.name, owner.name), (owner.name, sock.host.name)}
        if self.blocked & both or not owner.is_up:
            self.timeline.after(CONNECT_US, lambda: self._arrive(sock, port))
            return
        listening = self.listening.get(port)
        if listening is None or listening.backlog is None:
            self.timeline.after(self._latency_us(), lambda: sock.fail(errno.ECONNREFUSED))
            return
        peer = owner.new_socket()
        peer.name, peer.peer_name = (LOOPBACK, port), sock.name
        sock.out, peer.out = Pipe(sock, peer), Pipe(peer, sock)
        listening.backlog.append(peer)
        owner.changed = True
        self.timeline.after(self._latency_us(), lambda: self._connected(sock))

    def _connected(self, sock: SimSocket) -> None:
        sock.is_connecting, sock.host.changed = False, True

    def send(self, pipe: Pipe, data: bytes, *, is_control: bool = False) -> None:
        """Put data into a pipe."""
        self.trace(
            f"{pipe.source.host.name}>{pipe.target.host.name} {len(data)} {zlib.crc32(data)}"
        )
        if is_control:
            pipe.segments.append(memoryview(data))
        else:
            for at in range(0, len(data), SEGMENT_BYTES):
                pipe.segments.append(data[at : at + SEGMENT_BYTES])
            pipe.bytes_in_flight += len(data)
        self._move(pipe)

    def _move(self, pipe: Pipe) -> None:
        if not pipe.is_moving and pipe.segments:
            pipe.is_moving = True
            self.timeline.after(self._latency_us(), lambda: self._deliver(pipe))

    def _deliver(self, pipe: Pipe) -> None:
        """Deliver the segments of a pipe, unless its direction is blocked or a segment is lost."""
        source, target = pipe.source, pipe.target
        if pipe.is_dropped:
            return
        if (source.host.name, target.host.name) in self.blocked or not target.host.is_up:
            self._wait(pipe)
            return
        pipe.blocked_since_us = None
        while pipe.segments:
            if self.quality.loss and self._chance.random() < self.quality.loss:
                delay_us = self._chance.randint(RESEND_US, 4 * RESEND_US)
                self.timeline.after(delay_us, lambda: self._deliver(pipe))
                return
            segment = pipe.segments.popleft()
            if isinstance(segment, memoryview):
                target.has_end = True
                if segment == RESET:
                    target.fail(errno.ECONNRESET)
            elif target.is_dead or target.is_closed:
                self._refuse(pipe)
                return
            else:
                pipe.bytes_in_flight -= len(segment)
                target.arrived.append(segment)
                target.unread_bytes += len(segment)
        pipe.is_moving = False
        target.host.changed = source.host.changed = True

    def _wait(self, pipe: Pipe) -> None:
        """Schedule a retransmission; after too many, reset the connection at its source."""
        now_us = self.timeline.now_us
        if pipe.blocked_since_us is None:
            pipe.blocked_since_us = now_us
        if now_us - pipe.blocked_since_us > self._chance.randint(*self.quality.reset_us):
            pipe.is_dropped = True
            pipe.source.fail(errno.ETIMEDOUT)
            return
        self.timeline.after(RESEND_US, lambda: self._deliver(pipe))

    def _refuse(self, pipe: Pipe) -> None:
        """Respond with a reset to a segment for a closed socket, once the direction is open."""
        pipe.is_dropped = True
        source = pipe.source
        if source.is_closed or source.is_dead:
            return
        if (pipe.target.host.name, source.host.name) in self.blocked:
            self.timeline.after(RESEND_US, lambda: self._refuse(pipe))
        else:
            self.timeline.after(self._latency_us(), lambda: source.fail(errno.ECONNRESET))

    def on_room(self, sock: SimSocket) -> None:
        """Handle a read from a socket: its peer may be writable again."""
        if sock.out is not None:
            sock.out.target.host.changed = True

    def drop(self, first: Host, second: Host) -> None:
        """Drop all segments of the current connections between two hosts silently."""
        for host, other in ((first, second), (second, first)):
            for sock in host.sockets.values():
                if sock.out is not None and sock.out.target.host is other:
                    sock.out.is_dropped = True

    def reset(self, first: Host, second: Host) -> None:
        """Reset all connections between two hosts."""
        for host, other in ((first, second), (second, first)):
            for sock in list(host.sockets.values()):
                if sock.out is not None and sock.out.target.host is other:
                    sock.out.is_dropped = True
                    sock.fail(errno.ECONNRESET)
