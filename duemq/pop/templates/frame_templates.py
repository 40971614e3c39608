"""Templates of request frames: the positions of the numbers in a client's frames.

A client's requests of one kind differ in numbers only. The codec decodes the first frame; a
template is derived from it, and a kernel reads the following frames.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar, cast

import numpy as np

from duemq.net.connection import Connection
from duemq.net.layout import PREFIX_BYTES
from duemq.pop.kernels.matching_frames import Template
from duemq_common.request import Peer, Request
from message_store.kernels.bytes import Bytes

HEADER_BYTES_MAX: Final = 4_096
TEMPLATES_MAX: Final = 4  # per connection
UNUSED_MAX: Final = 16  # consecutive templates of a connection without a matching frame
NUMBER: Final = rb"(0|[1-9][0-9]{0,17})"
T = TypeVar("T")


class NumberField(NamedTuple):
    """Member of a JSON header whose value contains numbers.

    Attributes:
        name: Name in quotes; it must occur once in the header.
        pattern: Regular expression for name and value, with a group for each number.
        columns: Output column of each number.
    """

    name: bytes
    pattern: re.Pattern[bytes]
    columns: tuple[int, ...]


def number_field(name: str, column: int) -> NumberField:
    """Return the member of extFields with a name; its value is one number."""
    quoted = b'"%b"' % name.encode()
    return NumberField(quoted, re.compile(quoted + b':"' + NUMBER + b'(?=")'), (column,))


def opaque_field(column: int) -> NumberField:
    """Return the member for the opaque number of a request."""
    name = b'"opaque"'
    return NumberField(name, re.compile(name + b":" + NUMBER + b"(?=[,}])"), (column,))


def template_of(frame: bytes, request: Request, fields: Sequence[NumberField]) -> Template | None:
    """Return the template of a frame, None if the form of the frame is unsupported.

    Args:
        frame: A JSON frame with its prefix.
        request: The decoded request.
    """
    header = frame[PREFIX_BYTES:]
    if len(header) > HEADER_BYTES_MAX or len(request.body) or not _is_plain(header, request):
        return None
    spans: list[tuple[int, int, int]] = []
    for name, pattern, columns in fields:
        match = pattern.search(header)
        if match is None or header.count(name) != 1:
            return None
        spans += [(*match.span(index), column) for index, column in enumerate(columns, 1)]
    spans.sort()
    return _parts(header, spans)


def _is_plain(header: bytes, request: Request) -> bool:
    """Return whether a search for a name finds the member that the codec decodes.

    That holds without escapes, which give a name several spellings, and without objects other than
    the header and its extFields.
    """
    return (
        b"\\" not in header
        and header.count(b"{") == header.count(b"}") == 2
        and "opaque" not in request.fields
    )


def _parts(header: bytes, spans: list[tuple[int, int, int]]) -> Template:
    starts = [0, *(end for _, end, _ in spans)]
    literals = [
        header[start:end]
        for start, end in zip(starts, [*(start for start, _, _ in spans), len(header)], strict=True)
    ]
    text: Bytes = np.frombuffer(b"".join(literals), np.uint8).copy()
    ends = np.cumsum([len(literal) for literal in literals]).astype(np.int64)
    return Template(text, ends, np.array([column for *_, column in spans], np.int64))


@dataclass(slots=True)
class TemplateCache(Generic[T]):
    """Cache of the templates of one connection.

    Attributes:
        templates: Templates, most recently used first.
        unused: Number of templates added since a frame matched one.
    """

    templates: list[T] = field(default_factory=list)
    unused: int = 0

    def matched(self, index: int) -> None:
        """Move the template at index `index`, which a frame has matched, to the front."""
        self.unused = 0
        if index:
            self.templates.insert(0, self.templates.pop(index))


class ConnectionTemplates(Generic[T]):
    """Templates of all connections, for one kind of request."""

    def __init__(self) -> None:
        self._caches: dict[Connection, TemplateCache[T]] = {}

    def of(self, connection: Connection) -> TemplateCache[T] | None:
        """Return the cache of a connection; None: the connection has no templates."""
        return self._caches.get(connection)

    def accepts(self, connection: Connection) -> bool:
        """Return whether a template may be added: fewer than `UNUSED_MAX` are without a match."""
        cache = self._caches.get(connection)
        return cache is None or cache.unused < UNUSED_MAX

    def add(self, connection: Connection, template: T) -> None:
        """Add a template; above `TEMPLATES_MAX`, remove the least recently used template."""
        cache = self._caches.get(connection)
        if cache is None:
            cache = self._caches[connection] = TemplateCache()
            connection.on_close(self._remove)
        cache.unused += 1
        cache.templates.insert(0, template)
        del cache.templates[TEMPLATES_MAX:]

    def _remove(self, peer: Peer) -> None:
        self._caches.pop(cast(Connection, peer), None)
