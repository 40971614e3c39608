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
from timer_store.rehearsal import rehearse
from tests.timer_store.rig import TimerRig

def signatures():
    return {
        f"{module.__name__}.{name} {signature}"
        for module in (gather, stage)
        for name, kernel in vars(module).items()
        for signature in getattr(kernel, "signatures", ())
    }

rehearse()
before = signatures()
assert before
rig = TimerRig(Path(sys.argv[1])).open()
now_ms = rig.clock.now_ms()
rig.put_many([(now_ms + 2_000 + n % 7, "TU"[n % 2], 0, b"x") for n in range(100)])
rig.advance(4_000)
assert rig.timers.delivery.delivered == 100
print(*(signatures() - before), sep="\\n")
rig.close()
"""


def test_a_first_delivery_loads_no_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip()
