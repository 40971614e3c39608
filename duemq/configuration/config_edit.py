"""Edits of a configuration file that preserve comments, order, owner and mode.

prepare   write the new text to a temporary file and sync it
   |      (the running broker applies the change)
commit    replace the file                  discard   remove the temporary file

A file that belongs to others, is on a read-only file system or is mounted from outside, as in a
container, stays as it is: the change lasts until the next start or reload.

Source: Configuration.persist (which rewrites the file)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from duemq_common.codes import ResponseCode
from duemq_common.config_text import (
    FILE_BYTES_MAX,
    decode_text,
    logical_lines,
    physical_lines,
    split_line,
    unescape,
)
from duemq_common.errors import ConfigError, RequestError
from duemq_common.existence import exists

log = logging.getLogger(__name__)
READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY})
"""Errors of a file that this process may not replace; EBUSY: the file is a mount point."""
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
        lines[-1] = lines[-1][:-1]  # else the added line would continue it
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
    """Return an ASCII form of a character, equal in UTF-8 and Latin-1."""
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4))


class FileEdit:
    """Prepared change of a configuration file.

    A crash leaves either the old or the new file. The new file has the owner and mode of the old
    one, to protect passwords in it.

    Args:
        new: Temporary file with the new text; None: the file stays as it is.
    Attributes:
        undo: Reverts the applied changes if the file cannot be replaced.
    """

    def __init__(self, path: Path = Path(), new: Path | None = None) -> None:
        self._path, self._new = path, new
        self.undo: Callable[[], None] = lambda: None

    @classmethod
    def prepare(cls, path: Path, changes: Mapping[str, str]) -> FileEdit:
        """Write the new text to a temporary file.

        Raises:
            OSError: The file cannot be read, or the temporary file cannot be written.
            ConfigError: The file would be too long.
        """
        path = path.resolve()  # keep a symbolic link
        old = path.read_bytes() if exists(path) else b""
        text, encoding = decode_text(old)
        data = edit_text(text, changes).encode(encoding)
        if len(data) > FILE_BYTES_MAX:
            reason = f"would be longer than {FILE_BYTES_MAX} bytes; nothing was changed"
            raise ConfigError("configFile", str(path), reason)
        new = path.with_name(path.name + ".tmp")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(new, flags, 0o600), "wb") as out:
            _copy_owner_and_mode(out.fileno(), path)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        return cls(path, new)

    def commit(self) -> None:
        """Replace the file.

        Raises:
            OSError: The replacement failed; the old file is unchanged.
        """
        if self._new is not None:
            os.replace(self._new, self._path)

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._new is not None:
            self._new.unlink(missing_ok=True)


@asynccontextmanager
async def edited(path: Path | None, changes: Mapping[str, str]) -> AsyncIterator[FileEdit]:
    """Change a file together with a block that applies the change: both or neither.

    Args:
        path: Configuration file; None: there is no file.
    Raises:
        RequestError: The file cannot be written now, as on a full disk; nothing was changed.
        ConfigError: The file would be too long; nothing was changed.
    """
    edit = FileEdit()
    try:
        if path is not None:
            edit = await asyncio.to_thread(FileEdit.prepare, path, changes)
    except OSError as error:
        _check_read_only(path, error)
    try:
        yield edit
    except BaseException:
        await asyncio.to_thread(edit.discard)
        raise
    try:
        await asyncio.to_thread(edit.commit)
    except OSError as error:
        await asyncio.to_thread(edit.discard)
        try:
            _check_read_only(path, error)
        except RequestError:
            edit.undo()
            raise


def _check_read_only(path: Path | None, error: OSError) -> None:
    """Log that a file stays as it is.

    Raises:
        RequestError: The file can be written at other times.
    """
    if error.errno not in READ_ONLY:
        text = f"update config: {path} cannot be written ({error.strerror}); nothing was changed"
        raise RequestError(ResponseCode.SYSTEM_ERROR, text) from error
    text = "%s cannot be written (%s): the change lasts until the next start or reload"
    log.warning(text, path, error.strerror)


def _copy_owner_and_mode(descriptor: int, path: Path) -> None:
    try:
        was = path.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, NEW_FILE_MODE)
        return
    os.fchmod(descriptor, was.st_mode & 0o777)
    if was.st_uid != os.geteuid() or was.st_gid != os.getegid():
        with suppress(PermissionError):  # only root may change the owner
            os.fchown(descriptor, was.st_uid, was.st_gid)


def file_state(path: Path) -> tuple[int, int]:
    """Return (mtime in ns, size) of a file; (0, 0) if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
