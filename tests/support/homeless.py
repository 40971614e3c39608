"""User without a home directory, as in a container with any user id."""

from __future__ import annotations

import pwd
from typing import NoReturn

import pytest


def remove_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the home directory of this process from its environment and from the user table."""

    def absent(number: int) -> NoReturn:
        raise KeyError(f"uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", absent)
