"""Temporary files in memory, where syncs cost nothing, if the machine has enough of it.

Tests with real processes, kills and faults of disks import `tmp_path_factory` into their conftest:
their files are on a disk.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
DISK_VARIABLE: Final = "TESTS_ON_DISK"
GB: Final = 1 << 30
FREE_BYTES_MIN: Final = 4 * GB  # of the file system
AVAILABLE_BYTES_MIN: Final = 8 * GB  # of the machine


def use_memory() -> None:
    """Put temporary files into memory, unless TMPDIR names a directory."""
    os.environ.setdefault(DISK_VARIABLE, tempfile.gettempdir())  # workers inherit it
    if "TMPDIR" not in os.environ and has_room():
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it is read again


@pytest.fixture(scope="session")
def tmp_path_factory(request: pytest.FixtureRequest) -> Iterator[pytest.TempPathFactory]:
    """Create directories on a disk.

    In memory, a write of a mapped file does not change the time of the file, by which DueMQ notices
    that Apache's broker wrote it.
    """
    home = Path(tempfile.mkdtemp(prefix="duemq-tests-", dir=os.environ[DISK_VARIABLE]))
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(request.config.option, "basetemp", home / "tests")
        factory = pytest.TempPathFactory.from_config(request.config, _ispytest=True)
    yield factory
    if not request.session.testsfailed:
        shutil.rmtree(home, ignore_errors=True)


def has_room() -> bool:
    """Return whether the memory suffices for the files of all workers."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < FREE_BYTES_MIN:
        return False
    available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return available is not None and int(available[1]) << 10 >= AVAILABLE_BYTES_MIN
