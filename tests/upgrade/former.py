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


def install_former(directory: Path) -> Path:
    """Install the former version without dependencies, and compile its kernels.

    Skip the test in a shallow clone.
    """
    source, target = directory / "source", directory / "former"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", TOP, "archive", FORMER], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of this clone does not contain {FORMER}")
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"
    options = "--no-deps", "--no-build-isolation", "--no-compile", "--target", target
    subprocess.run([*pip, *options, source], check=True)
    # Otherwise the first requests wait for the compilation, which takes minutes on a busy machine.
    warm = sys.executable, "-m", "duemq", "kernels", "warm"
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
