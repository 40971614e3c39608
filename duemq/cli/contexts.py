"""Contexts: named addresses and options of clusters, in a file of the user.

    {"current": "prod", "contexts": {"prod": {"namesrv": "mq1:9876;mq2:9876", "tls": true}}}

The file is `duemq/contexts.json` in the user's configuration directory. It has the paths of secrets
and no secrets; only the user can read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from duemq.auth.secret_file import write_secrets
from duemq_common.errors import UsageError

SERVERS: Final = ("namesrv", "broker")


class ContextOptions(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options of a context, as `Target` names them; those that it does not have are empty."""

    namesrv: str = ""
    broker: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    access_key: str = ""
    secret_file: str = ""


class Contexts(Struct, kw_only=True):
    """Contexts of the file.

    Attributes:
        current: Name of the context that commands use; empty: none.
    """

    current: str = ""
    by_name: dict[str, ContextOptions] = field(name="contexts")

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
        path = contexts_path()
        try:
            write_secrets(path, msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error


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
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts(by_name={})
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        reason = f"{path} is not a file of contexts ({error}): repair or remove it"
        raise UsageError(reason) from error


def options_of(name: str, *, with_servers: bool) -> dict[str, str | bool]:
    """Return the options of a context for a command, without empty ones.

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
    options = msgspec.to_builtins(contexts.get(name)) if name else {}
    return {key: value for key, value in options.items() if not with_servers or key not in SERVERS}
