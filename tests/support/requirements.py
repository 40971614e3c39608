"""Requirements of tests: a test with a missing requirement is skipped; in CI it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Missing(Exception):
    """Missing program or package."""


def need_commands(*names: str) -> None:
    """Check that commands are in the PATH.

    Raises:
        Missing: A command is not.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Missing(f"not installed: {', '.join(missing)}")


def in_ci() -> bool:
    """Return whether this run is in CI, where all requirements must be met."""
    return os.environ.get("CI") == "true" or os.environ.get("TESTS_REQUIRE_ALL") == "1"


@contextmanager
def skip_without() -> Iterator[None]:
    """Skip the test if a requirement is missing inside the block; fail it in CI."""
    try:
        yield
    except Missing as error:
        if in_ci():
            pytest.fail(f"{error}; CI must have it")
        pytest.skip(str(error))
