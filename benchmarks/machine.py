"""Description of the machine, and processor use by other programs."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

GIB = 1 << 30
PACKAGES = ("numpy", "numba", "uvloop", "msgspec")


def describe() -> dict[str, str]:
    """Return the hardware, the kernel, and the versions of the relevant software."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {
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
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "missing"
    return facts


def load() -> str:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{each:.2f}" for each in os.getloadavg())


@dataclass(slots=True)
class Shared:
    """Processor use by others during a block, in cores; set when the block ends.

    Attributes:
        others: Cores used by other programs.
        stolen: Cores taken by the hypervisor (steal time).
    """

    others: float = 0.0
    stolen: float = 0.0

    def as_text(self) -> dict[str, str]:
        """Return the values as text, by description."""
        return {
            "work of others, cores": f"{self.others:.2f}",
            "stolen by the host, cores": f"{self.stolen:.2f}",
        }


@contextmanager
def shared_with_others() -> Iterator[Shared]:
    """Measure the processor use by others during the block. Linux only.

    This process and its children that have ended before the end of the block are excluded.
    """
    shared, start = Shared(), time.monotonic()
    (busy, stolen), ours = _busy_s(), _ours_s()
    yield shared
    seconds = max(time.monotonic() - start, 1e-3)
    busy_then, stolen_then = _busy_s()
    shared.others = max((busy_then - busy) - (_ours_s() - ours), 0.0) / seconds
    shared.stolen = (stolen_then - stolen) / seconds


def _busy_s() -> tuple[float, float]:
    """Return the processor time of all programs and the steal time, in seconds."""
    fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, stolen = fields
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, stolen / ticks


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
