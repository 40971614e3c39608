"""Changes to a configuration file that keep its comments and its order.

Source: Configuration.persist (which writes the file anew)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from message_store.config_text import logical_lines, physical_lines, split_line, unescape


def edit_text(text: str, changes: Mapping[str, str]) -> str:
    """Return properties text in which `changes` hold; all else is as it was."""
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
            lines[first - 1 : last] = [] if value is None else [f"{key} = {escaped(value)}"]
    lines += [f"{key} = {escaped(value)}" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def escaped(value: str) -> str:
    """Return a value as a properties file holds it."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + text if text[:1] in (" ", "\t") else text


def edit_file(path: Path, changes: Mapping[str, str]) -> None:
    """Change a file as a whole: a crash leaves the old one or the new one.

    Raises:
        OSError: The file cannot be written.
    """
    text = path.read_text() if path.exists() else ""
    new = path.with_name(path.name + ".tmp")
    with new.open("w") as out:
        out.write(edit_text(text, changes))
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, path)
