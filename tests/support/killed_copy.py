"""Directory of a running broker as a killed process leaves it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.sparse_files import copy_used


def copy_as_killed(root: Path, target: Path) -> None:
    """Copy a directory without the temporary files that the broker's threads rename meanwhile."""
    ignored = shutil.ignore_patterns("*.tmp", "*.ledger.*")
    shutil.copytree(root, target, ignore=ignored, copy_function=copy_used)
