"""Confirmation of a command that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from duemq.cli.exits import Exit, fail
from duemq.cli.output import printable
from duemq_common.errors import UsageError


def confirm(action: Callable[[], str], effect: str) -> None:
    """Ask for confirmation.

    Args:
        action: Returns what the command does, for the question.
        effect: What it changes, for the error without a terminal.
    Raises:
        UsageError: Standard input is not a terminal.
        SystemExit: The operator declined.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{effect}: add --yes, or check with --dry-run first")
    print(printable(f"{action()}? [y/N] "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail("nothing was changed", Exit.FOUND_FAULT)
