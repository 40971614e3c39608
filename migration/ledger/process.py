"""Writer process of the ledger: a thread of this process, or a process of its own.

    LedgerWriter --one thread--> LedgerWorker --> Ledger                  offline, and in tests
    LedgerWriter --one thread--> LedgerProcess ==pipe==> LedgerWorker --> Ledger    in a broker

SQLAlchemy and Alembic take seconds to load and milliseconds a statement, all of it with the
interpreter held: an event loop beside them delivers late. A call is pickled, with its length
before it; the answer is None, or the error. The process ends with ours, and comes again when it is
needed after it was killed.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from message_store.ledger.defaults import BUSY_MS, shown_text
from message_store.ledger.errors import LedgerError, LedgerUnavailable
from migration.ledger.records import Fold, Record

if TYPE_CHECKING:
    from migration.ledger.store import Ledger

LENGTH_BYTES: Final = 8
NICE: Final = 19  # after deliveries
ANSWER_S: Final = 60.0
END_S: Final = 10.0
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
COMMAND: Final = "from migration.ledger.process import serve; serve()"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPlace:
    """Which ledger, and whose."""

    url: str
    store_id: str
    store_path: str
    busy_ms: int = BUSY_MS


class LedgerWorker:
    """Writes a ledger; every call blocks, and raises `LedgerError`."""

    def __init__(self, place: LedgerPlace) -> None:
        self._place = place
        self._ledger: Ledger | None = None

    def open(self, fold: Fold, now_ms: int) -> None:
        """Open it, made or upgraded if need be, and bring it to what the log says."""
        from migration.ledger.store import Ledger  # SQLAlchemy, Alembic: only who needs them waits

        self.close()
        place = self._place
        ledger = Ledger.open(
            place.url,
            store_id=place.store_id,
            store_path=place.store_path,
            now_ms=now_ms,
            busy_ms=place.busy_ms,
        )
        ledger.rebuild(fold)
        self._ledger = ledger

    def write(self, records: Sequence[Record]) -> None:
        """Write records in one transaction."""
        assert self._ledger is not None, "it is open"
        self._ledger.write(records)

    def close(self) -> None:
        """Let go of it; nothing happens where it is not open."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def end(self) -> None:
        """Let go of it; there is nothing else to end."""
        self.close()


class AnyLedgerWorker(Protocol):
    """What `LedgerWriter` asks of either."""

    def open(self, fold: Fold, now_ms: int) -> None: ...
    def write(self, records: Sequence[Record]) -> None: ...
    def close(self) -> None: ...
    def end(self) -> None: ...


class LedgerProcess:
    """The same in a process of its own, which lives from the first `open` to `end`."""

    def __init__(self, place: LedgerPlace) -> None:
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, fold: Fold, now_ms: int) -> None:
        """See `LedgerWorker.open`."""
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it was killed
        if self._process is None:
            self._process = self._started()
            self._ask("place", self._place)
        self._ask("open", fold, now_ms)

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-c", COMMAND]
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            why = f"no process can be started to write it ({error.strerror})"
            raise LedgerUnavailable(
                shown_text(self._place.url), why, "It is tried again"
            ) from error

    def write(self, records: Sequence[Record]) -> None:
        """See `LedgerWorker.write`."""
        self._ask("write", list(records))

    def close(self) -> None:
        """See `LedgerWorker.close`."""
        if self._process is not None and self._process.poll() is None:
            with suppress(LedgerUnavailable):  # then it is closed
                self._ask("close")

    def end(self) -> None:
        """End the process; what it was told is written."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it was killed
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:  # the log has all of it
            process.kill()
            process.wait()
        process.stdout.close()

    def _ask(self, name: str, *arguments: Any) -> None:
        process = self._process
        assert process is not None, "it is open"
        assert process.stdin is not None
        assert process.stdout is not None
        patience = Timer(ANSWER_S, process.kill)  # a disk or a server that answers no more
        patience.daemon = True
        patience.start()
        try:
            _send(process.stdin, (name, arguments))
            answer = _receive(process.stdout)
        except (EOFError, OSError) as error:
            process.kill()  # if it has not ended, it is of no use either
            process.wait()
            where = shown_text(self._place.url)
            why = f"the process that writes it has ended, or did not answer for {ANSWER_S:.0f} s"
            raise LedgerUnavailable(where, why, "Another one is started") from error
        finally:
            patience.cancel()
        if answer is not None:
            raise answer


def serve() -> None:
    """Do what is asked at standard input until its end. The other process."""
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the broker, which ends us
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever prints does not answer
    worker: LedgerWorker | None = None
    while True:
        try:
            name, arguments = _receive(asked)
        except EOFError:
            break
        answer: LedgerError | None = None
        if worker is None:
            [place] = arguments
            worker = LedgerWorker(place)
        else:
            answer = _done(worker, name, arguments, shown_text(place.url))
        _send(answers, answer)
    if worker is not None:
        worker.close()


def _done(worker: LedgerWorker, name: str, arguments: Any, where: str) -> LedgerError | None:
    try:
        getattr(worker, name)(*arguments)
    except LedgerError as error:
        return error
    except Exception as error:  # a batch that cannot be written must not come again and again
        return LedgerError(where, f"{type(error).__name__}: {error}", "Please report this")
    return None


def _end_with_parent() -> None:
    """Have this process be killed with the thread that started it, not only at its input's end.

    That thread is the writer's own: it lives until `end`, or as long as its process.
    """
    with suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    length = stream.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        raise EOFError
    size = int.from_bytes(length, "big")
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)
