"""Edits of a configuration file that keep comments, order, owner and mode.

prepare   the new text in a second file, synced
   |      (the running broker takes the change)
commit    the new text in the file's place              discard   the new text is removed

Source: Configuration.persist (which rewrites the file)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from duemq.net.codes import ResponseCode
from message_store.config_text import (
    FILE_BYTES_MAX,
    decode_text,
    logical_lines,
    physical_lines,
    split_line,
    unescape,
)
from message_store.errors import ConfigError, RequestError

_ESCAPED: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_KEY_ESCAPED: Final = _ESCAPED | {char: f"\\{char}" for char in " =:#!"}
NEW_FILE_MODE: Final = 0o640


def edit_text(text: str, changes: Mapping[str, str]) -> str:
    """Return properties text with `changes` applied; the rest is unchanged."""
    lines = physical_lines(text)
    while lines and not lines[-1].strip():
        lines.pop()
    left = dict(changes)
    entries = list(logical_lines(lines))
    if entries and entries[-1][1] == len(lines) and _continues(lines[-1]):
        lines[-1] = lines[-1][:-1]  # or it would swallow what we add
    for first, last, line in reversed(entries):
        key = unescape(split_line(line)[0], line, "")
        if key in changes:
            value = left.pop(key, None)
            lines[first - 1 : last] = [] if value is None else [_entry(key, value)]
    lines += [_entry(key, value) for key, value in left.items()]
    return "\n".join(lines) + "\n"


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(key: str, value: str) -> str:
    return f"{escaped_key(key)} = {escaped(value)}"


def escaped(value: str) -> str:
    """Return a value in the syntax of a properties file."""
    text = "".join(_ESCAPED.get(char) or _ascii(char) for char in value)
    return "\\" + text if text[:1] == " " else text


def escaped_key(key: str) -> str:
    """Return a key in the syntax of a properties file, with separators and line ends escaped."""
    return "".join(_KEY_ESCAPED.get(char) or _ascii(char) for char in key)


def _ascii(char: str) -> str:
    """Return a character so that it is read back alike from UTF-8 and from Latin-1."""
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class FileEdit:
    """A change of a configuration file that is ready to be made.

    Attributes:
        undo: Called when the file cannot be replaced, to revert the applied changes.

    A crash leaves the old file or the new one. The new one has the owner and the mode of the old:
    a file that holds a password stays as closed as it was.
    """

    def __init__(self, path: Path, new: Path) -> None:
        self._path, self._new = path, new
        self.undo: Callable[[], None] = lambda: None

    @classmethod
    def prepare(cls, path: Path, changes: Mapping[str, str]) -> FileEdit:
        """Write the new text to a second file.

        Raises:
            OSError: The file cannot be read, or the second file cannot be written.
            ConfigError: The file would be too long to be read again.
        """
        path = path.resolve()  # a link stays a link
        old = path.read_bytes() if path.exists() else b""
        text, encoding = decode_text(old)
        data = edit_text(text, changes).encode(encoding)
        if len(data) > FILE_BYTES_MAX:
            why = f"would be longer than {FILE_BYTES_MAX} bytes; nothing was changed"
            raise ConfigError("configFile", str(path), why)
        new = path.with_name(path.name + ".tmp")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(new, flags, 0o600), "wb") as out:
            _as_before(out.fileno(), path)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        return cls(path, new)

    def commit(self) -> None:
        """Put the new text in the file's place.

        Raises:
            OSError: The disk refused it; the old file is as it was.
        """
        os.replace(self._new, self._path)

    def discard(self) -> None:
        """Remove the new text."""
        self._new.unlink(missing_ok=True)


class NoFileEdit(FileEdit):
    """A change that is kept in memory only: the broker was started without a file."""

    def __init__(self) -> None:
        super().__init__(Path(), Path())

    def commit(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def edited(path: Path | None, changes: Mapping[str, str]) -> AsyncIterator[FileEdit]:
    """Change a file around a block that applies the change: both, or neither.

    Args:
        path: None: there is no file.
    Raises:
        RequestError: The file cannot be written; nothing was changed.
        ConfigError: The file would be too long; nothing was changed.
    """
    try:
        edit = await asyncio.to_thread(FileEdit.prepare, path, changes) if path else NoFileEdit()
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield edit
    except BaseException:
        await asyncio.to_thread(edit.discard)
        raise
    try:
        await asyncio.to_thread(edit.commit)
    except OSError as error:
        edit.undo()
        raise _unwritable(path, error) from error


def _unwritable(path: Path | None, error: OSError) -> RequestError:
    text = f"update config: {path} cannot be written ({error.strerror}); nothing was changed"
    return RequestError(ResponseCode.SYSTEM_ERROR, text)


def _as_before(descriptor: int, path: Path) -> None:
    try:
        was = path.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, NEW_FILE_MODE)
        return
    os.fchmod(descriptor, was.st_mode & 0o777)
    if was.st_uid != os.geteuid() or was.st_gid != os.getegid():
        with suppress(PermissionError):  # only root may; the mode is kept all the same
            os.fchown(descriptor, was.st_uid, was.st_gid)


def file_state(path: Path) -> tuple[int, int]:
    """Return what changes when a file is written, (0, 0) if there is none: mtime in ns, size."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
