"""Exit codes, and the conversion of errors into a line of text and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from duemq.cli.output import printable
from duemq_common.errors import CorruptStore, DueMQError, RequestError, StoreError, UsageError
from duemq_common.ledger.errors import LedgerError


class Exit(IntEnum):
    """Exit codes of commands; 130 and 141 are 128 plus the signal, as in shells."""

    DONE = 0
    FOUND_FAULT = 1  # the check failed: something is missing, damaged or not as expected
    USAGE = 2  # wrong arguments or configuration; a port in use
    UNREACHABLE = 3  # no broker or name server responds
    REFUSED = 4  # the broker refused the request
    STORE = 5  # the store cannot be opened or failed while running
    INTERNAL = 70  # bug in DueMQ
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141  # standard output was closed, as by `| head`


MEANINGS = {
    Exit.DONE: "done",
    Exit.FOUND_FAULT: "the check failed: something is missing, damaged or not as expected",
    Exit.USAGE: "wrong arguments or configuration; a port in use; a plugin that cannot be loaded",
    Exit.UNREACHABLE: "no broker or name server responds at the address",
    Exit.REFUSED: "the broker refused the request, or does not have what it names",
    Exit.STORE: "the store cannot be opened, or the broker had to stop because of it",
    Exit.INTERNAL: "internal error in DueMQ; please report it with the traceback",
    Exit.INTERRUPTED: "interrupted by Ctrl-C (by SIGTERM: 143)",
    Exit.OUTPUT_CLOSED: "standard output was closed, as by `| head`",
}


def exit_code(error: BaseException) -> Exit:
    """Return the exit code of an error."""
    if isinstance(error, (UsageError, LedgerError)):
        return Exit.USAGE
    if isinstance(error, (StoreError, CorruptStore)):
        return Exit.STORE
    if isinstance(error, OSError) and error.filename is not None:
        return Exit.USAGE  # a file of the command
    if isinstance(error, (OSError, TimeoutError)):
        return Exit.UNREACHABLE
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    from duemq.client.errors import ClientError, NoBroker, NoNameServer  # only after a failure

    if isinstance(error, NoBroker):
        return Exit.FOUND_FAULT
    if isinstance(error, NoNameServer):
        return Exit.USAGE
    return Exit.REFUSED if isinstance(error, ClientError | RequestError) else Exit.INTERNAL


def fail(text: str, code: Exit) -> None:
    """Print an error to standard error and exit with `code`."""
    print(f"duemq: {printable(text, lines=True)}", file=sys.stderr)
    raise SystemExit(int(code))


@contextmanager
def errors_become_exits() -> Iterator[None]:
    """Turn expected errors into one line of text and an exit code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where a closed pipe has an exit code
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(int(Exit.OUTPUT_CLOSED)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    except (DueMQError, OSError) as error:
        _fail_with(error)
    except BaseExceptionGroup as group:
        if group.subgroup(BrokenPipeError) is not None:
            _discard_output()
            raise SystemExit(int(Exit.OUTPUT_CLOSED)) from None
        expected, other = group.split((DueMQError, OSError))
        if other is not None or expected is None:
            raise
        _fail_with(_first(expected))


def _fail_with(error: BaseException) -> None:
    reason = _reason(error)
    if isinstance(reason, RequestError) and exit_code(reason) == Exit.REFUSED:
        fail(f"refused with code {reason.code}: {reason.remark}", Exit.REFUSED)
    fail(_one_line(error) + _remedy(reason), exit_code(reason))


def _remedy(error: BaseException) -> str:
    """Return what to do about an error whose text does not say it."""
    from duemq.client.connections import ONLY_PLAINTEXT, ONLY_TLS  # only when a command has failed
    from duemq.client.errors import Unreachable

    if not isinstance(error, Unreachable) or str(error).endswith((ONLY_PLAINTEXT, ONLY_TLS)):
        return ""
    return "; check that it runs, and the address (--namesrv, --broker)"


def _reason(error: BaseException) -> BaseException:
    """Return the cause of a send that failed, and any other error itself."""
    from duemq.client.errors import NotSent  # only when a command has failed

    return error.__cause__ or error if isinstance(error, NotSent) else error


def _discard_output() -> None:
    """Redirect buffered output to the null device, so that the final flush does not fail."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _one_line(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no response in time"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
