"""Exit codes, and the conversion of errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from duemq.cli.output import printable
from message_store.errors import CorruptStore, DueMQError, RequestError, StoreError, UsageError
from message_store.ledger.errors import LedgerError


class Exit(IntEnum):
    """What a command ends with; 130 and 141 as shells count signals."""

    DONE = 0
    FOUND_FAULT = 1  # what was asked about is missing, damaged or not as promised
    USAGE = 2  # wrong arguments or configuration; a port in use
    UNREACHABLE = 3  # no broker or name server answers there
    REFUSED = 4  # the broker answered, but refused
    STORE = 5  # the store cannot be opened or went bad while running
    INTERNAL = 70  # a fault of ours
    INTERRUPTED = 130
    READER_GONE = 141  # whatever read standard output has ended, as in `| head`


MEANINGS = {
    Exit.DONE: "done",
    Exit.FOUND_FAULT: "what was asked about is missing, damaged or not as promised",
    Exit.USAGE: "wrong arguments or configuration; a port in use; a plugin that cannot be loaded",
    Exit.UNREACHABLE: "no broker or name server answers there",
    Exit.REFUSED: "the broker answered, but refused",
    Exit.STORE: "the store cannot be opened, or the broker had to stop because of it",
    Exit.INTERNAL: "a fault of DueMQ's own; the traceback belongs into a report",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.READER_GONE: "what read the output has ended, as in `| head`",
}


def exit_code(error: BaseException) -> Exit:
    """Return the exit code of an error."""
    if isinstance(error, (UsageError, LedgerError)):
        return Exit.USAGE
    if isinstance(error, RequestError):
        return Exit.REFUSED
    if isinstance(error, (StoreError, CorruptStore)):
        return Exit.STORE
    if isinstance(error, (OSError, TimeoutError)):
        return Exit.UNREACHABLE
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return Exit.INTERNAL


def fail(text: str, code: Exit) -> None:
    """Print one line to standard error and leave with `code`."""
    print(f"duemq: {printable(text, lines=True)}", file=sys.stderr)
    raise SystemExit(int(code))


@contextmanager
def errors_become_exits() -> Iterator[None]:
    """Turn errors that a user can do something about into one line and an exit code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where a reader that is gone has an exit code
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(int(Exit.READER_GONE)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    except RequestError as error:
        fail(f"refused with code {error.code}: {error.remark}", Exit.REFUSED)
    except (DueMQError, OSError) as error:
        fail(_one_line(error), exit_code(error))
    except BaseExceptionGroup as group:
        if group.subgroup(BrokenPipeError) is not None:
            _discard_output()
            raise SystemExit(int(Exit.READER_GONE)) from None
        known, other = group.split((DueMQError, OSError))
        if other is not None or known is None:
            raise
        first = _first(known)
        fail(_one_line(first), exit_code(first))


def _discard_output() -> None:
    """Send what is still buffered to nowhere, so that the interpreter's own flush is quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _one_line(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__
