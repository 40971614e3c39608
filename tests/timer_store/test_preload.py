"""The rehearsal loads the very kernels that a first delivery needs, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]
CHILD = """
import sys
from pathlib import Path
from timer_store.kernels import gather, stage
from timer_store.preload import preload_kernels
from tests.support.timer_rig import TimerRig

def signatures():
    return {
        f"{module.__name__}.{name} {signature}"
        for module in (gather, stage)
        for name, kernel in vars(module).items()
        for signature in getattr(kernel, "signatures", ())
    }

preload_kernels()
before = signatures()
assert before
rig = TimerRig(Path(sys.argv[1])).open()
now_ms = rig.clock.now_ms()
rig.put_many([(now_ms + 2_000 + n % 7, "TU"[n % 2], 0, b"x") for n in range(100)])
rig.advance(4_000)
assert rig.timers.dequeue.delivered == 100
print(*(signatures() - before), sep="\\n")
rig.close()
"""


COPIES = """
import sys
from pathlib import Path
import pytest
from timer_store.kernels import chain, decide, fetch, wheel
from timer_store.preload import preload_copies
from tests.support.full_timer_disk import DAY_MS, FullDisk, PinningRig

def signatures():
    return {
        f"{module.__name__}.{name} {signature}"
        for module in (chain, decide, fetch, wheel)
        for name, kernel in vars(module).items()
        for signature in getattr(kernel, "signatures", ())
    }

preload_copies()
assert signatures()
disk = FullDisk(pytest.MonkeyPatch())
rig = PinningRig(Path(sys.argv[1]), disk).open()
rig.put_many([(rig.clock.now_ms() + DAY_MS + n, "T", 0, b"x") for n in range(9)])
rig.fill(3)
before = signatures()
disk.percent = 88
rig.compact()
assert rig.timers.compaction.copied == 9
print(*(signatures() - before), sep="\\n")
rig.close()
"""


def test_first_copies_load_no_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COPIES, str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()


def test_a_first_delivery_loads_no_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()
