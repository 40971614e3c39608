"""Freed memory returns to the operating system."""

from __future__ import annotations

import subprocess
import sys

import pytest

LARGE_BLOCKS = """
import platform, sys
from duemq_common.memory.allocator import return_large_blocks
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
FREE_BLOCKS = """
import platform, sys
from duemq_common.memory.allocator import return_free_memory
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


@pytest.mark.finding("A20")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_large_blocks_are_not_kept() -> None:
    subprocess.run([sys.executable, "-c", LARGE_BLOCKS], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_free_blocks_between_others_are_returned() -> None:
    subprocess.run([sys.executable, "-c", FREE_BLOCKS], check=True)
