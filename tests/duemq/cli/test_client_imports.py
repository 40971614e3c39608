"""Imports of commands that only send requests to a broker, and of a broker."""

from __future__ import annotations

import subprocess
import sys

import pytest

TIMEOUT_S = 60


@pytest.mark.sampled
@pytest.mark.parametrize(
    "module", ["messages", "send_file", "consume", "levels", "replicas", "timers"]
)
def test_a_client_starts_without_the_compiler(module: str) -> None:
    """Numba is most of the start: 0.6 s of 1 s."""
    program = f"import sys, duemq.cli.{module}; sys.exit('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0


def test_a_broker_imports_what_the_default_configuration_needs() -> None:
    program = """
import sys, duemq.broker.broker, duemq_migration.plugin, schedule_service.plugin, timer_store.plugin
from message_store.kernels.array_types import register_array_types
from message_store.kernels.registry import load
register_array_types()
load("send", "levels", "timers", "ingest")
modules = "lark", "sqlalchemy", "cryptography", "google.protobuf", "jh2", "numba.np.arrayobj"
modules += "typer", "pydantic", "rich", "numpy.ma", "duemq.replication.controller"
print(*(name for name in modules if name in sys.modules))
"""
    for _ in range(2):  # the first process may compile the kernels
        done = subprocess.run(
            [sys.executable, "-c", program], timeout=TIMEOUT_S, check=True, capture_output=True
        )
    assert done.stdout.split() == []
