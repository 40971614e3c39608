"""Compiled loops. Importing this package sets where their machine code is kept.

Numba notices a change of the file a kernel stands in, but not of the helpers it inlines; so the
cache directory is named by a digest of every source file that can end up in machine code. The
file `complete` in it says that everything was compiled (see `message_store.kernels.warm`).
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import numba

CACHE_VARIABLE = "DUEMQ_KERNEL_CACHE"


def compiled_sources() -> list[Path]:
    """Return the source files whose text ends up in machine code, in a fixed order."""
    top = Path(__file__).resolve().parents[2]
    names = ("message_store", "schedule_service", "timer_store", "migration", "broker")
    found = [path for name in names for path in (top / name).rglob("*.py")]
    return sorted(p for p in found if "kernels" in p.as_posix() or p.name in _LAYOUT_FILES)


_LAYOUT_FILES = ("layout.py", "topics.py")


def _cache_directory() -> Path:
    digest = hashlib.sha256(f"{numba.__version__} {platform.python_version()}".encode())
    for path in compiled_sources():  # numba keeps code by the place of its source, too
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duemq" / "kernels"
    return Path(os.environ.get(CACHE_VARIABLE) or default) / digest.hexdigest()[:16]


CACHE_DIRECTORY = _cache_directory()
try:
    CACHE_DIRECTORY.mkdir(parents=True, exist_ok=True)
    numba.config.CACHE_DIR = str(CACHE_DIRECTORY)  # type: ignore[attr-defined]
except OSError:  # a read-only home: numba falls back to __pycache__ beside the sources
    pass
