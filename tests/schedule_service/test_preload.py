"""The rehearsal loads the very kernels that a first delivery needs, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]
CHILD = """
import asyncio, sys
from pathlib import Path
from message_store.kernels import encode, scan
from delivery.kernels.lateness import count_late
from schedule_service import kernels
from schedule_service.preload import preload_kernels
from tests.support.level_rig import level_service

NAMES = ("due_times", "count_due", "read_due", "leading_stored")
DELIVERY = [getattr(kernels, name) for name in NAMES]
DELIVERY += [scan.read_units, count_late, encode.prepare, encode.encode]

def signatures():
    return {f"{kernel} {s}" for kernel in DELIVERY for s in kernel.signatures}

async def main():
    preload_kernels()
    assert len(signatures()) == len(DELIVERY)
    async with level_service(Path(sys.argv[1])) as rig:
        rig.send(1, count=100)
        rig.send(2)
        before = signatures()
        await rig.advance(5_000)
        assert len(rig.bodies()) == 101
    print(*(signatures() - before), sep="\\n")

asyncio.run(main())
"""


def test_a_first_delivery_loads_no_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()
