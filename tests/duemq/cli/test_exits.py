"""Exit codes of errors."""

from __future__ import annotations

import subprocess
import sys

from duemq.cli.exits import Exit

FAILS = """
import sys
from duemq import cli
from duemq.cli import server_command

server_command.server_command = lambda arguments: 1 // 0
sys.argv = ["duemq", "levels"]
cli.main()
"""


def test_an_internal_error_is_not_a_failed_check() -> None:
    command = [sys.executable, "-c", FAILS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == Exit.INTERNAL
    assert ended.stderr.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")
