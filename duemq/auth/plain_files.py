"""Files of ACL 1.0: `conf/acl/*.yml` and `conf/plain_acl.yml` below rocketmqHome, with hot reload.

A changed file is reloaded when it is unchanged between two polls, since a partly written file may
be valid YAML. A file that is invalid or accessible to other users of the machine is rejected: the
current rules stay, and the log and a metric report the file; a process does not start with it. A
request may change a file only while all files are loaded in their current state.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from duemq.auth.accounts import AccountRefused
from duemq.auth.plain_rules import PlainRules, rules_of
from duemq.auth.secret_file import REPAIR, read_secrets, write_secrets
from duemq_common.errors import CorruptStore
from duemq_common.existence import exists, is_directory

log = logging.getLogger(__name__)
POLL_MS: Final = 1_000
FILE_BYTES_MAX: Final = 4 << 20
FILES_MAX: Final = 1_000
SUFFIXES: Final = (".yml", ".yaml")
Contents = dict[Path, bytes]
"""Contents by path, in order of precedence."""


class Decoded(Struct, frozen=True):
    """Decoded and validated files."""

    digest: bytes
    values: dict[Path, object]
    rules: PlainRules


class FileChange(Struct, frozen=True):
    """Planned replacement of one file, with the resulting state of all files."""

    path: Path
    data: bytes
    after: Decoded

    def write(self) -> None:
        """Write the file; raise as `write_secrets` does."""
        write_secrets(self.path, self.data)


class PlainFiles:
    """Rules in the files, updated by `poll`.

    Attributes:
        default: File for new accounts.
        version: Number of changes of the rules.
        failure_count: Number of rejected changes.

    Raises:
        CorruptStore: A file cannot be used.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "conf" / "acl"
        self.default = home / "conf" / "plain_acl.yml"
        self._current = decode(self._read())
        self._seen = self._current.digest
        self.version = self.failure_count = 0
        self._failing = self._reported = ""

    @property
    def rules(self) -> PlainRules:
        """Current rules."""
        return self._current.rules

    @property
    def values(self) -> dict[Path, object]:
        """Current decoded files, in order of precedence."""
        return self._current.values

    def poll(self) -> None:
        """Reload changed files that are unchanged since the last poll."""
        try:
            files = self._read()
            digest = digest_of(files)
            settled, self._seen = digest == self._seen, digest
            new = decode(files) if settled and digest != self._current.digest else None
        except CorruptStore as error:
            self._report(str(error))
            return
        self._failing = self._reported = ""
        if new is not None:
            self._use(new)
            log.info("reloaded %s: %d accounts", self._folder.parent, len(new.rules.accounts))

    def planned(self, path: Path, value: object) -> FileChange:
        """Return the change that sets the content of a file.

        Raises:
            AccountRefused: A file has changed and is not loaded yet, or the result is invalid.
        """
        try:
            files = self._read()
        except CorruptStore as error:
            raise AccountRefused(str(error)) from error
        if digest_of(files) != self._current.digest:
            raise AccountRefused("a file has changed and is not loaded yet: retry in a few seconds")
        data = dumped(value)
        if len(data) > FILE_BYTES_MAX:
            raise AccountRefused(f"{path} would be longer than {FILE_BYTES_MAX} bytes")
        try:
            return FileChange(path, data, decode({**files, path: data}))
        except CorruptStore as error:
            raise AccountRefused(error.reason) from error

    def use(self, change: FileChange) -> None:
        """Activate a change that has been written."""
        self._seen = change.after.digest
        self._use(change.after)

    def _use(self, new: Decoded) -> None:
        self._current = new
        self.version += 1

    def _report(self, failure: str) -> None:
        """Report a failure once, when it has lasted for two polls."""
        if failure == self._failing and failure != self._reported:
            self._reported = failure
            self.failure_count += 1
            log.error("the accounts are not reloaded: %s", failure)
        self._failing = failure

    def _read(self) -> Contents:
        remedy = "aclEnable needs this file below rocketmqHome"
        try:
            paths = files_below(self._folder)
            if len(paths) > FILES_MAX:
                reason = f"more than {FILES_MAX} files"
                raise CorruptStore(self._folder, 0, reason, "Remove unused ones")
            if not paths or exists(self.default):
                paths.append(self.default)
            return {path: read_secrets(path, FILE_BYTES_MAX, remedy) for path in paths}
        except FileNotFoundError as error:
            path = Path(os.fsdecode(error.filename))
            raise CorruptStore(path, 0, f"it cannot be read: {error.strerror}", remedy) from error
        except OSError as error:
            path = Path(os.fsdecode(error.filename or self._folder))
            reason = f"it cannot be read: {error.strerror}"
            raise CorruptStore(path, 0, reason, "Let the broker's user read it") from error


def files_below(folder: Path) -> list[Path]:
    """Return the YAML files below a directory, in order of precedence; none if it is absent.

    Raises:
        OSError: A directory cannot be read; its files must not seem to be deleted.
    """

    def fail(error: OSError) -> None:
        raise error

    if not is_directory(folder):
        return []
    files = [
        Path(directory, name)
        for directory, _, names in os.walk(folder, onerror=fail)
        for name in names
    ]
    return sorted(path for path in files if path.suffix in SUFFIXES)


def digest_of(files: Contents) -> bytes:
    """Return a digest of names and contents."""
    whole = hashlib.sha256()
    for path, data in files.items():
        whole.update(f"{path} {len(data)} ".encode("utf-8", "surrogateescape") + data)
    return whole.digest()


def decode(files: Contents) -> Decoded:
    """Decode and validate the files.

    Raises:
        CorruptStore: A file is invalid.
    """
    import yaml  # only brokers with ACL 1.0 need it

    values: dict[Path, object] = {}
    for path, data in files.items():
        try:
            values[path] = yaml.safe_load(data)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
            reason = where + str(getattr(error, "problem", None) or "it is not YAML")
            raise CorruptStore(
                path, mark.index if mark is not None else 0, reason, REPAIR
            ) from None
    try:
        rules = rules_of((str(path), value) for path, value in values.items())
    except ValueError as error:
        raise CorruptStore(next(reversed(files)), 0, str(error), REPAIR) from None
    return Decoded(digest_of(files), values, rules)


def dumped(value: object) -> bytes:
    """Return a value as YAML in the style of Apache's broker."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=False, sort_keys=False, allow_unicode=True)
    return text.encode()
