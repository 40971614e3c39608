"""The former version of DueMQ: installed from the history, and run as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.commands import TOP
from tests.support.duemq_server import DueMQ

FORMER: Final = "680acb1ca47e3bcbda067948286b90322efc7400"
"""Commit of the version whose stores are exchanged with the present one; later: the tag of the
newest release."""
FIRST: Final = "6a96b807c1622bc9a45ac0cd4e1afb6f4ded6e29"
"""Commit of 0.1.0, which has levels and transactions only."""


def install_former(directory: Path, commit: str = FORMER, package: str = "duemq") -> Path:
    """Install a former version without dependencies, and compile its kernels.

    Skip the test in a shallow clone.
    """
    source, target = directory / "source", directory / "former"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", TOP, "archive", commit], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of this clone does not contain {commit}")
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"
    options = "--no-deps", "--no-build-isolation", "--no-compile", "--target", target
    subprocess.run([*pip, *options, source], check=True)
    # Otherwise the first requests wait for the compilation, which takes minutes on a busy machine.
    warm = sys.executable, "-m", package, "kernels", "warm"
    subprocess.run(warm, env=os.environ | environment_of(target), cwd=directory, check=True)
    return target


def environment_of(installed: Path) -> dict[str, str]:
    """Return variables with which Python imports an installed version."""
    return {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}


class Former(DueMQ):
    """Broker of the former version.

    Args:
        installed: Directory of `install_former`.
    """

    name = "duemq, former version"

    def __init__(self, installed: Path, home: Path, store_dir: Path, keys: dict[str, str]) -> None:
        super().__init__(home, store_dir=store_dir, keys=keys)
        self.env = environment_of(installed)


class FirstRelease(Former):
    """Broker of 0.1.0."""

    name = "duemq 0.1.0"
    package = "broker.cli"
