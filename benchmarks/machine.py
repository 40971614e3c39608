"""What a figure was measured on and with."""

from __future__ import annotations

import os
import platform
import subprocess
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
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
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
