"""Machine code that is kept is loaded without a call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numpy as np
from message_store import layout
from message_store.kernels import crc, scan
from message_store.kernels.kept import load_kept
from message_store.kernels.kernel import kernel

@kernel
def never_compiled(x: int) -> int:
    return x

data = np.zeros(1, np.uint8)
data.flags.writeable = False
units = np.zeros(1, layout.UNIT)
if {use}:
    scan.read_units(data[:0], units[:0])  # compiled, and kept
    raise SystemExit
assert not scan.read_units.overloads
assert load_kept(scan.read_units, never_compiled, len) == 1
(signature,) = [one for one in scan.read_units.overloads if one[0].mutable is False]
before = len(scan.read_units.overloads)
scan.read_units(data[:0], units[:0])
assert len(scan.read_units.overloads) == before, "it was compiled for these types already"
assert load_kept(scan.read_units) == 0
print("fine")
"""


def test_a_call_finds_the_machine_code_that_was_loaded(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "0", "PYTHONPATH": str(Path(__file__).parents[3])}
    program = tmp_path / "program.py"
    for use, said in ((True, ""), (False, "fine")):
        program.write_text(PROGRAM.format(use=use))
        words = [sys.executable, str(program)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, check=False, env=env
        )
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
