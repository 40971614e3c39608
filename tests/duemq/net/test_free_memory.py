"""Free memory goes back to the operating system on request."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import platform, sys
from duemq.net.free_memory import return_free_memory
if platform.libc_ver()[0] != "glibc":
    assert return_free_memory() in (True, False)
    sys.exit(0)

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
blocks, between = [], []
for _ in range(1_000):
    blocks.append(bytearray(100_000))
    between.append(bytearray(2_000))  # lies behind it in the heap
blocks.clear()
kept = resident() - before
assert kept > 64 << 20, kept
assert return_free_memory()
kept = resident() - before
assert kept < 16 << 20, kept
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_free_blocks_between_others_are_returned() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
