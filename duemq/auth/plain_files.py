"""Files of ACL 1.0: `conf/plain_acl.yml` and `conf/acl/*.yml` below rocketmqHome, with hot reload.

A changed file is read again once it has stayed the same between two polls: a file that is being
written may be valid YAML with half of its accounts. A file that is invalid, or that other users of
the machine may read, changes nothing: the rules in force stay, the log and a metric show it. At a
start it prevents the start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from pathlib import Path
from typing import Final

from duemq.auth.plain_rules import PlainRules, rules_of
from message_store.errors import CorruptStore

log = logging.getLogger(__name__)
POLL_MS: Final = 1_000
FILE_BYTES_MAX: Final = 4 << 20
FILES_MAX: Final = 1_000
SUFFIXES: Final = (".yml", ".yaml")
_REMEDY: Final = "Repair it, or restore it from a copy"


class PlainFiles:
    """The rules in the files, kept up to date by `poll`.

    Attributes:
        rules: The rules in force.
        version: Number of changes of them.
        failure_count: Changed files that could not be used.

    Raises:
        CorruptStore: A file cannot be used.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        found = self._read()
        self.rules: PlainRules = _decoded(found)
        self._digest = self._seen = _digest_of(found)
        self.version = self.failure_count = 0
        self._failing = self._reported = ""

    def poll(self) -> None:
        """Use changed files that have stayed the same since the last poll."""
        try:
            found = self._read()
            digest = _digest_of(found)
            settled, self._seen = digest == self._seen, digest
            rules = _decoded(found) if settled and digest != self._digest else None
        except CorruptStore as error:
            self._report(str(error))
            return
        self._failing = self._reported = ""
        if rules is not None:
            self.rules, self._digest = rules, digest
            self.version += 1
            log.info("accounts of %s read again: %d", self._home, len(rules.accounts or {}))

    def _report(self, failure: str) -> None:
        """Report a failure that has lasted since the last poll, once."""
        if failure == self._failing and failure != self._reported:
            self._reported = failure
            self.failure_count += 1
            log.error("the accounts stay as they are: %s", failure)
        self._failing = failure

    def _read(self) -> list[tuple[Path, bytes]]:
        paths = [self._home / "conf" / "plain_acl.yml"]
        folder = self._home / "conf" / "acl"
        paths += sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
        if len(paths) > FILES_MAX:
            raise CorruptStore(folder, 0, f"more than {FILES_MAX} files", "Remove unused ones")
        return [(path, _read_file(path)) for path in paths]


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & stat.S_IRWXO:
                mode = stat.S_IMODE(found.st_mode)
                why = f"every user of this machine may use it (mode {mode:04o})"
                raise CorruptStore(path, 0, why, f"Run `chmod 600 {path}`")
            if found.st_size > FILE_BYTES_MAX:
                raise CorruptStore(path, 0, f"longer than {FILE_BYTES_MAX} bytes", _REMEDY)
            return file.read()
    except OSError as error:
        remedy = "aclEnable needs this file below rocketmqHome"
        raise CorruptStore(path, 0, f"it cannot be read: {error.strerror}", remedy) from error


def _digest_of(files: list[tuple[Path, bytes]]) -> bytes:
    whole = hashlib.sha256()
    for path, data in files:
        whole.update(f"{path} {len(data)} ".encode("utf-8", "surrogateescape") + data)
    return whole.digest()


def _decoded(files: list[tuple[Path, bytes]]) -> PlainRules:
    import yaml  # only brokers with ACL 1.0 need it

    values: list[tuple[str, object]] = []
    for path, data in files:
        try:
            values.append((str(path), yaml.safe_load(data)))
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
            why = where + str(getattr(error, "problem", None) or "it is no YAML")
            raise CorruptStore(path, mark.index if mark is not None else 0, why, _REMEDY) from None
    try:
        return rules_of(values)
    except ValueError as error:
        raise CorruptStore(files[0][0], 0, str(error), _REMEDY) from None
