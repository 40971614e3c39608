"""Fixtures of the tests of migrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.migration_rig import kill_opened


@pytest.fixture(scope="module", autouse=True)
def no_open_stores() -> Iterator[None]:
    """End the stores that the tests of a file leave open."""
    yield
    kill_opened()
