"""Worker that writes a ledger: in the calling thread, or in a child process.

SQLAlchemy and Alembic take seconds to load and milliseconds per statement, while they hold the GIL:
an event loop in the same process would deliver late. Therefore a broker writes through a child
process. A call is a pair (method, arguments); its result is None or the error. The child ends with
its parent, and is started again on demand after a kill.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from threading import Lock, Thread, Timer
from typing import TYPE_CHECKING, Final, Protocol

from duemq_common.ledger.errors import LedgerError, LedgerUnavailable
from duemq_common.ledger.location import LedgerLocation, shown_url
from duemq_common.ledger.records import LedgerRecord, LogSnapshot

if TYPE_CHECKING:
    from duemq_common.ledger.ledger import Ledger

NICE: Final = 19  # niceness: deliveries come first
RESPONSE_S: Final = 60.0
END_S: Final = 10.0
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
COMMAND: Final = "from duemq_common.ledger.worker import serve; serve()"


class Worker(Protocol):
    """Blocking writer of one ledger; every call raises `LedgerError`.

    Attributes:
        place: Location and owner of the ledger.
    """

    place: LedgerLocation

    def open(self, snapshot: LogSnapshot, now_ms: int) -> None:
        """Open the ledger, creating or upgrading it if necessary, and rebuild it from the log."""

    def write(self, records: Sequence[LedgerRecord]) -> None:
        """Write records in one transaction."""

    def close(self) -> None:
        """Close the ledger; do nothing if it is not open."""

    def end(self) -> None:
        """Close the ledger and end the process, if there is one."""

    def break_off(self) -> None:
        """End a call in progress, if a process executes it, and refuse all later ones.

        May be called from any thread; the log has what was not written.
        """


class LedgerWorker:
    """Worker in the calling thread."""

    def __init__(self, place: LedgerLocation) -> None:
        self.place = place
        self._ledger: Ledger | None = None

    def open(self, snapshot: LogSnapshot, now_ms: int) -> None:
        from duemq_common.ledger.ledger import Ledger  # loads SQLAlchemy and Alembic

        self.close()
        ledger = Ledger.open(self.place, now_ms=now_ms)
        ledger.rebuild(snapshot)
        self._ledger = ledger

    def write(self, records: Sequence[LedgerRecord]) -> None:
        assert self._ledger is not None, "it is open"
        self._ledger.write(records)

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    end = close

    def break_off(self) -> None:
        """Do nothing: a call in this thread ends by itself."""


class LedgerProcess:
    """Worker in a separate process, which runs from the first `open` to `end`."""

    def __init__(self, place: LedgerLocation) -> None:
        self.place = place
        self._is_broken_off = False
        self._closing = Lock()  # the pipe is closed in one thread, and broken off in another
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def open(self, snapshot: LogSnapshot, now_ms: int) -> None:
        if self._is_broken_off:
            raise self._broken_off()
        if self._process is not None and self._process.poll() is not None:
            self.end()  # the process was killed
        if self._process is None:
            self._start()
        self._call("open", snapshot, now_ms)

    def write(self, records: Sequence[LedgerRecord]) -> None:
        self._call("write", list(records))

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(LedgerUnavailable):  # the ledger of an ended process is closed
                self._call("close")

    def end(self) -> None:
        """Close the pipe; the process then closes the ledger and ends, which nothing waits for.

        On a busy machine, even a killed process of this niceness needs seconds to end.
        """
        process, self._process = self._process, None
        if process is None:
            return
        assert self._pipe is not None
        with self._closing:
            self._pipe.close()
        Thread(target=_reap, args=(process,), name="end of the ledger process", daemon=True).start()

    def break_off(self) -> None:
        self._is_broken_off = True
        process, pipe = self._process, self._pipe
        if process is None or pipe is None:
            return
        process.kill()
        with self._closing:
            if not pipe.closed:  # `recv` in the other thread returns, before the process has ended
                with socket.socket(fileno=os.dup(pipe.fileno())) as both_ends:
                    both_ends.shutdown(socket.SHUT_RDWR)

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-c", COMMAND, str(theirs.fileno())]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            except OSError as error:
                reason = f"no process can be started to write it ({error.strerror})"
                raise LedgerUnavailable(
                    shown_url(self.place.url), reason, "The broker tries again"
                ) from error
        if self._is_broken_off:  # meanwhile, by another thread
            self._process.kill()
        self._call("place", self.place)

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return None if self._process is None else self._process.pid

    def _broken_off(self) -> LedgerUnavailable:
        reason = "the broker stops, or changes its role, and does not wait for it"
        return LedgerUnavailable(shown_url(self.place.url), reason, "The log has what it lacks")

    def _call(self, name: str, *arguments: object) -> None:
        process, pipe = self._process, self._pipe
        assert process is not None, "it is open"
        assert pipe is not None
        deadline = Timer(RESPONSE_S, process.kill)  # disk or server has stopped responding
        deadline.daemon = True
        deadline.start()
        try:
            pipe.send((name, arguments))
            response: LedgerError | None = pipe.recv()
        except (EOFError, OSError) as error:
            process.kill()  # it is unusable, even if it has not ended
            if self._is_broken_off:
                raise self._broken_off() from error
            process.wait()
            reason = (
                f"the process that writes it has ended, or did not respond for {RESPONSE_S:.0f} s"
            )
            raise LedgerUnavailable(
                shown_url(self.place.url), reason, "Another one is started"
            ) from error
        finally:
            deadline.cancel()
        if response is not None:
            raise response


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:  # the log has the unwritten records
        process.kill()
        process.wait()


def serve() -> None:
    """Execute the calls that come through the pipe until it closes. Runs in the child."""
    # If the parent process is killed, the kernel kills this process at once, even within a
    # statement: the thread that started it lives as long as the writer.
    with suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the broker, which ends this process
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    pipe = Connection(int(sys.argv[1]))
    _, [place] = pipe.recv()
    worker = LedgerWorker(place)
    pipe.send(None)
    with suppress(EOFError, OSError):
        while True:
            name, arguments = pipe.recv()
            pipe.send(_call(worker, name, arguments))
    worker.close()


def _call(worker: LedgerWorker, name: str, arguments: tuple[object, ...]) -> LedgerError | None:
    try:
        getattr(worker, name)(*arguments)
    except LedgerError as error:
        return error
    except Exception as error:  # a batch that cannot be written must not be repeated forever
        reason = f"{type(error).__name__}: {error}"
        return LedgerError(shown_url(worker.place.url), reason, "Please report this")
    return None
