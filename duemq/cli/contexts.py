"""Contexts: named addresses and options of clusters, in a file of the user.

    {"current": "prod", "contexts": {"prod": {"namesrv": "mq1:9876;mq2:9876", "tls": true}}}

The file is `duemq/contexts.json` in the user's configuration directory. It has the paths of secrets
and no secrets; only the user can read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from duemq_common.errors import UsageError

FILE_MODE: Final = 0o600
OPTIONS: Final[Mapping[str, type]] = {
    "namesrv": str,
    "broker": str,
    "tls": bool,
    "tls_ca": str,
    "tls_cert": str,
    "access_key": str,
    "secret_file": str,
}
"""Options of a context, as `Target` names them."""
SERVERS: Final = ("namesrv", "broker")
ContextOptions = dict[str, str | bool]


@dataclass(slots=True)
class Contexts:
    """Contexts of a file.

    Attributes:
        current: Name of the context that commands use; empty: none.
    """

    path: Path
    current: str = ""
    by_name: dict[str, ContextOptions] = field(default_factory=dict)

    def get(self, name: str) -> ContextOptions:
        """Return the options of a context.

        Raises:
            UsageError: There is no such context.
        """
        if name not in self.by_name:
            names = ", ".join(sorted(self.by_name)) or "none"
            raise UsageError(f"there is no context {name}; there are: {names}")
        return self.by_name[name]

    def save(self) -> None:
        """Replace the file; afterwards it has the new content, or, after a crash, the former one.

        Raises:
            UsageError: The file cannot be written.
        """
        text = json.dumps({"current": self.current, "contexts": self.by_name}, indent=2) + "\n"
        written = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            written.replace(self.path)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error


def contexts_path() -> Path:
    """Return the file of the user's contexts.

    Raises:
        UsageError: This user has no home directory.
    """
    directory = _user_directory()
    if directory is None:
        raise UsageError("this user has no home directory: set XDG_CONFIG_HOME to a directory")
    return directory / "duemq" / "contexts.json"


def _user_directory() -> Path | None:
    """Return the directory of the user's configuration; None: the user has no home directory."""
    if home := os.environ.get("XDG_CONFIG_HOME", ""):
        return Path(home)
    try:
        return Path.home() / ".config"
    except RuntimeError:
        return None


def read_contexts() -> Contexts:
    """Return the contexts in the file; none if it does not exist.

    Raises:
        UsageError: The file cannot be read, or is malformed.
    """
    path = contexts_path()
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        value = json.loads(text)
        contexts = {str(name): _options(each) for name, each in value["contexts"].items()}
        return Contexts(path, str(value.get("current", "")), contexts)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        reason = f"{path} is not a file of contexts ({error}): repair or remove it"
        raise UsageError(reason) from error


def _options(value: Mapping[str, object]) -> ContextOptions:
    options: ContextOptions = {}
    for name, each in value.items():
        kind = OPTIONS.get(name)
        if kind is None or not isinstance(each, str | bool) or not isinstance(each, kind):
            raise ValueError(f"option {name}={each!r} is not known")
        options[name] = each
    return options


def options_of(name: str, *, with_servers: bool) -> ContextOptions:
    """Return the options of a context for a command.

    Args:
        name: Context; empty: the current one, if the command names no servers.
        with_servers: Whether the command names servers: those of a context do not count then.
    Raises:
        UsageError: There is no such context, or the file is malformed.
    """
    if not name and (with_servers or _user_directory() is None):
        return {}
    contexts = read_contexts()
    name = name or contexts.current
    options = contexts.get(name) if name else {}
    return {key: value for key, value in options.items() if not with_servers or key not in SERVERS}
