"""What a machine must have for these tests: skip without it, but fail in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Missing(Exception):
    """Something that is not part of this project is not installed."""


def need_commands(*names: str) -> None:
    """Do nothing if all these commands are on the path.

    Raises:
        Missing: One is not.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Missing(f"not installed: {', '.join(missing)}")


def in_ci() -> bool:
    """Return whether we run where everything must be present."""
    return os.environ.get("CI") == "true" or os.environ.get("DUEMQ_CI") == "1"


@contextmanager
def skip_without() -> Iterator[None]:
    """Skip the test when something is missing inside the block; fail it in CI."""
    try:
        yield
    except Missing as error:
        if in_ci():
            pytest.fail(f"{error}; CI must have it")
        pytest.skip(str(error))
