"""JSON as Apache's brokers write it (fastjson 1.2), and files that survive a torn write.

    {                                   members and text keys: one per line, TAB indent
        "offsetTable":{1:100,2:200      number keys: not quoted, on one line
        }                               closing brace on its own line; {} if empty
    }

A key may also be an object: `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`. It is read as an
`ObjectKey`, the compact text of that object.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, TypeVar

from duemq_common import config_sums
from duemq_common.directories import sync_directory, write_synced
from duemq_common.disk_errors import naming
from duemq_common.errors import CorruptStore
from duemq_common.existence import exists

logger = logging.getLogger(__name__)
DEPTH_MAX = 64
TEXT_BYTES_MAX = 256 << 20
_T = TypeVar("_T")
_BLANKS = re.compile(r"[ \t\r\n]*")
_BARE = re.compile(r"[-+.\w]+")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class ObjectKey(str):
    """Compact JSON text of an object that is a key."""

    __slots__ = ()


class Written(str):
    """Text of a value that was encoded by `written`."""

    __slots__ = ()


# -- writing ------------------------------------------------------------------------------------


def dumps(value: object) -> str:
    """Return the pretty text of objects, arrays, numbers, texts; members in the order given."""
    return _pretty(value, 0)


def written(value: object, depth: int) -> Written:
    """Return the text of a value at a depth of `depth` objects, for `dumps`.

    If the rows of a table are kept in this form, a change of one row is encoded quickly.
    """
    return Written(_pretty(value, depth))


def written_member(key: str, numbers: Mapping[int, int], depth: int) -> str:
    """Return the text of a member of an object at a depth, for `written_object`.

    Args:
        numbers: Value of the member.
    """
    begin = "\n" + "\t" * (depth + 1)
    if not numbers:
        return f"{begin}{_text(key)}:{{}}"
    text = ",".join([f"{number}:{value}" for number, value in numbers.items()])
    return f"{begin}{_text(key)}:{{{text}{begin}}}"


def written_object(members: Collection[str], depth: int) -> Written:
    """Return the text of an object at a depth, from those of its members."""
    return Written("{" + ",".join(members) + "\n" + "\t" * depth + "}" if members else "{}")


def dumps_compact(value: object) -> str:
    """Return the text without blanks and line ends."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(k)}:{dumps_compact(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(dumps_compact(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is Written:
        return str(value)
    return str(value) if kind is int else json.dumps(value)


def _text(value: str) -> str:
    if not value.isascii() and _LONE_SURROGATE.search(value):
        return json.dumps(value)  # it has no UTF-8 form
    return encode_basestring(value)


def _key(key: object) -> str:
    if isinstance(key, ObjectKey) or not isinstance(key, str):
        return str(key)
    return _text(key)


def _pretty(value: object, depth: int) -> str:
    if not isinstance(value, dict):
        return dumps_compact(value)
    if not value:
        return "{}"
    parts = []
    begin = "\n" + "\t" * (depth + 1)
    for key, item in value.items():
        line = begin if isinstance(key, str) and not isinstance(key, ObjectKey) else ""
        text = _pretty(item, depth + 1) if isinstance(item, dict) else dumps_compact(item)
        parts.append(f"{line}{_key(key)}:{text}")
    return "{" + ",".join(parts) + "\n" + "\t" * depth + "}"


# -- reading ------------------------------------------------------------------------------------


def loads(text: str) -> Any:
    """Return the value of a JSON text in either dialect; number keys become int.

    Raises:
        ValueError: It is not JSON (with line and column), too long or nested too deeply.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise ValueError(f"the text has {len(text)} characters; the limit is {TEXT_BYTES_MAX}")
    reader = _JsonReader(text)
    value = reader.value(0)
    reader.blanks()
    if reader.position != len(text):
        raise reader.fault("unexpected text after the value")
    return value


class _JsonReader:
    """A position in a text."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self._decoder = json.JSONDecoder()

    def fault(self, reason: str) -> ValueError:
        line = self.text.count("\n", 0, self.position) + 1
        column = self.position - (self.text.rfind("\n", 0, self.position) + 1) + 1
        return ValueError(f"line {line}, column {column}: {reason}")

    def blanks(self) -> str:
        """Skip blanks; return the next character, or an empty text at the end."""
        match = _BLANKS.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return self.text[self.position : self.position + 1]

    def expect(self, character: str) -> None:
        if self.blanks() != character:
            raise self.fault(f"expected {character!r}")
        self.position += 1

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self.fault(f"nested deeper than {DEPTH_MAX}")
        first = self.blanks()
        if first == "{":
            return self.members(depth)
        if first == "[":
            return self.items(depth)
        return self.scalar()

    def scalar(self) -> object:
        try:
            value, self.position = self._decoder.raw_decode(self.text, self.position)
        except (ValueError, RecursionError) as error:
            raise self.fault("expected a value") from error
        return value

    def items(self, depth: int) -> list[object]:
        self.position += 1
        values: list[object] = []
        if self.blanks() == "]":
            self.position += 1
            return values
        while True:
            values.append(self.value(depth + 1))
            if self.blanks() == "]":
                self.position += 1
                return values
            self.expect(",")

    def members(self, depth: int) -> dict[object, object]:
        self.position += 1
        values: dict[object, object] = {}
        if self.blanks() == "}":
            self.position += 1
            return values
        while True:
            key = self.key(depth)
            self.expect(":")
            values[key] = self.value(depth + 1)
            if self.blanks() == "}":
                self.position += 1
                return values
            self.expect(",")

    def key(self, depth: int) -> object:
        first = self.blanks()
        if first == '"':
            return self.scalar()
        if first == "{":
            return ObjectKey(dumps_compact(self.value(depth + 1)))
        bare = _BARE.match(self.text, self.position)
        if bare is None:
            raise self.fault("expected a key")
        self.position = bare.end()
        word = bare.group()
        return int(word) if re.fullmatch(r"[-+]?\d{1,19}", word) else word


# -- files --------------------------------------------------------------------------------------


def backup_path(path: Path) -> Path:
    """Return the path of the previous version of a config file."""
    return path.with_name(path.name + ".bak")


def write_config(path: Path, text: str) -> None:
    """Replace a config file atomically: the disk always has the old or the new file.

    The old file becomes the `.bak` only after the new one is in place, so a torn file never
    replaces a valid backup.

    Raises:
        OSError: The file cannot be written, and the old file and its `.bak` are unchanged; or the
            new file is written, but may not be durable yet, or the `.bak` is an older one. The
            error names a file.
    """
    with naming(path):
        _replace_config(path, text)


def _replace_config(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    data = text.encode()
    write_synced(temporary, data)
    old = _link_old(path)
    os.replace(temporary, path)
    if old is not None:
        os.replace(old, backup_path(path))
    config_sums.record(path, data, previous=backup_path(path) if old is not None else None)
    sync_directory(path.parent)


def _link_old(path: Path) -> Path | None:
    """Link the file to a second name, under which it remains after it is replaced."""
    if not exists(path) or not path.stat().st_size:
        return None
    old = path.with_name(path.name + ".old")
    old.unlink(missing_ok=True)
    try:
        os.link(path, old)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, old)
    return old


def read_config(path: Path) -> str | None:
    """Return the text of a config file, else of its `.bak`, else None.

    Raises:
        OSError: The file exists, but neither it nor its `.bak` can be read.
    """
    failure: OSError | None = None
    for candidate in (path, backup_path(path)):
        try:
            if exists(candidate) and candidate.stat().st_size:
                return read_text(candidate)
        except OSError as error:
            failure = failure or error
        except ValueError as error:
            logger.warning("%s: %s", candidate, error)
    if failure is not None:
        raise failure
    return None


def read_text(path: Path) -> str:
    """Return the text of a file as it was written.

    Raises:
        OSError: The disk cannot read it.
        ValueError: The disk has changed it.
    """
    return config_sums.checked(path, path.read_bytes()).decode("utf-8", "replace")


def load_config(path: Path, decode: Callable[[Any], _T]) -> _T | None:
    """Return the decoded value of the file, else of its `.bak`; None if neither exists.

    Raises:
        CorruptStore: There is a file, but neither it nor its `.bak` can be read and decoded.
    """
    failure: Exception | None = None
    for candidate in (path, backup_path(path)):
        if not exists(candidate) or not candidate.stat().st_size:
            continue
        try:
            value = decode(loads(read_text(candidate)))
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
        ) as error:
            failure = failure or error
            continue
        if failure is not None:
            logger.warning("%s: %s; %s is used", path, failure, candidate.name)
        return value
    if failure is None:
        return None
    raise CorruptStore(
        path,
        0,
        f"neither it nor {backup_path(path).name} can be read: {failure}",
        "Restore one of them from a copy; removing both starts with empty state.",
    ) from failure
