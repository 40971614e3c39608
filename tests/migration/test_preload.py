"""The rehearsal loads the very kernels that a first step needs, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]
CHILD = """
import sys
from duemq.preload import preload_kernels as of_broker
from migration.preload import preload_kernels
from migration.warm import warm_migration
from schedule_service.preload import preload_kernels as of_levels
from timer_store.preload import preload_kernels as of_timers, preload_copies

def signatures():
    return {
        f"{kernel.py_func.__module__}.{name} {signature}"
        for where, module in list(sys.modules.items())
        if where.split(".")[0] in ("message_store", "migration", "schedule_service", "timer_store")
        for name, kernel in vars(module).items()
        for signature in getattr(kernel, "signatures", ())
    }

for each in (of_broker, of_levels, of_timers, preload_copies, preload_kernels):
    each()
before = signatures()
assert before
warm_migration()
print(*(signatures() - before), sep="\\n")
"""


def test_a_first_step_loads_no_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()
