"""Large blocks go back to the operating system, whatever was freed before."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import platform, sys
from duemq.broker.allocator import return_large_blocks
fixed = return_large_blocks()
if platform.libc_ver()[0] != "glibc":
    sys.exit(0)
assert fixed

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

del (warm := {0: bytes(30 << 20)})[0]  # by default, glibc maps no block below this size any more
before = resident()
blocks, between = [], []
for _ in range(16):
    blocks.append(b"x" * (4 << 20))
    between.append(b"y" * 60_000)  # lies behind it in the heap
blocks.clear()
kept = resident() - before
assert kept < 8 << 20, kept
"""


@pytest.mark.finding("A20")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_large_blocks_are_not_kept() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
