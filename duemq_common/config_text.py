"""Java properties text, read as `java.util.Properties.load` reads it, with line numbers.

    # comment                 key = value            key: value           key value
    long = first \\
           second             u = \\u00e9
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from duemq_common.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


class Properties(Mapping[str, str]):
    """Parsed `key=value` text, with the source of each key."""

    def __init__(
        self, values: Mapping[str, str] | None = None, sources: Mapping[str, str] | None = None
    ) -> None:
        self._values = dict(values or {})
        self._sources = dict(sources or {})

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def source(self, key: str) -> str:
        """Return the source of `key`, as in `broker.conf line 7`, or "" if it is unknown."""
        return self._sources.get(key, "")

    def merged(self, values: Mapping[str, str], source: str = "") -> Properties:
        """Return a copy in which `values` take precedence."""
        sources = dict(self._sources)
        for key in values:
            sources[key] = values.source(key) if isinstance(values, Properties) else source
        return Properties({**self._values, **values}, sources)


def read_properties(path: Path | str) -> Properties:
    """Read and parse a configuration file.

    Raises:
        ConfigError: The file cannot be read, is too long, or a line of it is malformed.
    """
    path = Path(path)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            reason = f"longer than {FILE_BYTES_MAX} bytes: this is not a configuration file"
            raise ConfigError("configFile", str(path), reason)
        data = path.read_bytes()
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise ConfigError("configFile", str(path), reason) from error
    return parse_properties(decode_text(data)[0], source=path.name)


def decode_text(data: bytes) -> tuple[str, str]:
    """Return the text of a configuration file and the encoding that it is in."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"  # what Java reads


def parse_properties(text: str, *, source: str = "") -> Properties:
    """Parse `key=value`, `key: value` or `key value` lines as Java does; the last one wins.

    Raises:
        ConfigError: A `\\u` escape is malformed.
    """
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    for number, _, line in logical_lines(physical_lines(text)):
        where = f"{source} line {number}" if source else f"line {number}"
        raw_key, raw_value = split_line(line)
        key = unescape(raw_key, line, where)
        values[key] = unescape(raw_value, line, where).strip()
        sources[key] = where
    return Properties(values, sources)


def physical_lines(text: str) -> list[str]:
    """Return the lines of a text with any line ends."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def logical_lines(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (first line, last line, joined text) of every entry; lines count from 1."""
    joined, first = "", 0
    for number, line in enumerate(lines, start=1):
        stripped = line.lstrip(_BLANKS)
        if not first:
            if not stripped or stripped[0] in "#!":
                continue
            first = number
        joined += stripped
        if (len(joined) - len(joined.rstrip("\\"))) % 2 and number < len(lines):
            joined = joined[:-1]
            continue
        yield first, number, joined
        joined, first = "", 0


def split_line(line: str) -> tuple[str, str]:
    """Return key and value of an entry, escapes still in them."""
    index = 0
    while index < len(line) and line[index] not in "=:" + _BLANKS:
        index += 2 if line[index] == "\\" else 1
    key, rest = line[:index], line[index:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def unescape(text: str, line: str, where: str) -> str:
    """Return a key or a value without its escapes.

    Raises:
        ConfigError: A `\\u` escape is malformed.
    """
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\" or index == len(text):
            out.append("" if char == "\\" else char)
            continue
        char = text[index]
        index += 1
        if char == "u":
            digits = text[index : index + 4]
            if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ConfigError(line, "", "\\u needs four hexadecimal digits", source=where)
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return _joined("".join(out))


def _joined(text: str) -> str:
    """Return text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class UnknownKey(Struct, frozen=True):
    """A key that no section has; `nearest` is the most similar known key, or None."""

    key: str
    source: str
    nearest: str | None

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"unknown key {self.key}{where}, ignored{hint}"


def unknown_keys(properties: Mapping[str, str], known_keys: Iterable[str]) -> list[UnknownKey]:
    """Return the keys of `properties` that are not in `known_keys`, with the nearest known one."""
    names = sorted(set(known_keys))
    by_lower = {name.lower(): name for name in names}
    unknown = []
    for key in properties:
        if key in by_lower.values():
            continue
        near = _close_matches(key.lower(), by_lower)
        source = properties.source(key) if isinstance(properties, Properties) else ""
        unknown.append(UnknownKey(key, source, by_lower[near[0]] if near else None))
    return unknown


def _close_matches(word: str, words: Iterable[str]) -> list[str]:
    import difflib  # only an unknown key needs it

    return difflib.get_close_matches(word, words, n=1, cutoff=0.6)
