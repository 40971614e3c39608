"""Check of the files of a queue or log that is rebuilt from the commit log, when it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from duemq_common.errors import CorruptStore
from message_store.log.zeroing import restored_size

NAME_DIGITS: Final = 20


def check_next(
    path: Path, before: int | None, file_bytes: int, *, is_last: bool, key: str, source: str
) -> int:
    """Check name, size and position of the next file; return the position of its first byte.

    A last file that was truncated is extended.

    Args:
        before: Position of the first byte of the file before it; None: it is the first file.
        file_bytes: Configured size of the files.
        key: Key of the size.
        source: What the directory is rebuilt from.
    Raises:
        CorruptStore: The file cannot be the next one.
    """
    name = path.name
    if not (name.isascii() and name.isdigit() and len(name) == NAME_DIGITS):
        raise CorruptStore(
            path,
            0,
            f"its name is not a position of {NAME_DIGITS} digits",
            "Move it out of this directory.",
        )
    proven = before is not None
    size = restored_size(path, file_bytes, proven=proven) if is_last else path.stat().st_size
    if size != file_bytes:
        raise CorruptStore(
            path,
            0,
            f"it has {size} bytes, {key} is {file_bytes}",
            f"Set {key} to the size with which the store was written.",
        )
    base = int(name)
    expected_base = base if before is None else before + file_bytes
    if base != expected_base or base % file_bytes:
        raise CorruptStore(
            path,
            0,
            f"the file that starts at {expected_base} is missing before it",
            f"Restore the missing file, or remove {path.parent}: it is rebuilt from {source}.",
        )
    return base
