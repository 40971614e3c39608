"""Paths of configuration keys that begin with `~`, the home directory of a user."""

from __future__ import annotations

import os
from pathlib import Path

from duemq_common.errors import ConfigError


def expanded(key: str, text: str) -> Path:
    """Return the path of a configuration key.

    Raises:
        ConfigError: The path begins with `~`, and there is no such home directory. A service
            account or a container may have none.
    """
    path = os.path.expanduser(text)
    if path.startswith("~"):
        reason = "there is no such home directory: set a path that does not begin with ~"
        raise ConfigError(key, text, reason)
    return Path(path)
