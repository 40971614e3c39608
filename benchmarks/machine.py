"""What a figure was measured on and with."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

GIB = 1 << 30
PACKAGES = ("numpy", "numba", "uvloop", "msgspec")


def describe() -> dict[str, str]:
    """Return the machine, its kernel and the versions that matter."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory_bytes / GIB:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": load(),
        "python": platform.python_version(),
        "java": _first_line("java", "-version"),
        "go": _first_line("go", "version"),
        "commit": _first_line("git", "rev-parse", "--short", "HEAD"),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    return found


def load() -> str:
    """Return how busy the machine was over the last 1, 5 and 15 minutes."""
    return " ".join(f"{each:.2f}" for each in os.getloadavg())


@contextmanager
def others_busy() -> Iterator[list[float]]:
    """Measure how many cores work of others kept busy during the block; appended at its end.

    Ours are this process and its children that have ended by then. Linux only.
    """
    found: list[float] = []
    start, busy, ours = time.monotonic(), _busy_s(), _ours_s()
    yield found
    seconds = max(time.monotonic() - start, 1e-3)
    found.append(max((_busy_s() - busy) - (_ours_s() - ours), 0.0) / seconds)


def _busy_s() -> float:
    """Return the processor time of everything on this machine, stolen time included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    idle, waiting = int(fields[3]), int(fields[4])
    return (sum(map(int, fields)) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def _ours_s() -> float:
    return sum(os.times()[:4])


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return "missing"
    return ((done.stdout + done.stderr).splitlines() or [""])[0]
