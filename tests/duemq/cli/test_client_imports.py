"""Imports of a command that only sends requests to a broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

TIMEOUT_S = 60


@pytest.mark.parametrize(
    "module", ["messages", "send_file", "consume", "levels", "replicas", "timers"]
)
def test_a_client_starts_without_the_compiler(module: str) -> None:
    """Numba is most of the start: 0.6 s of 1 s."""
    program = f"import sys, duemq.cli.{module}; sys.exit('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0
