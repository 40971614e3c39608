"""Blocks of a page, as plain data: pages return them, `templates/blocks.html` renders them.

A text is a key of the catalogue if its type is `Key`. The value None is shown as "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType

from duemq.http.endpoints import JsonValue

Key = NewType("Key", str)
"""Key of the catalogue."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Value with the way it is shown.

    Attributes:
        kind: `text`, `number`, `time`, `ms` (a duration), `bytes`, `code`, or `key` (of the
            catalogue).
        link: Target of a link.
        state: `good` or `bad`; empty: neither.
    """

    value: JsonValue
    kind: str = "text"
    link: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """Figure with its label."""

    label: Key
    cell: Cell


@dataclass(frozen=True, slots=True)
class Tiles:
    """Row of figures."""

    tiles: Sequence[Tile]
    kind: str = "tiles"


@dataclass(frozen=True, slots=True)
class RowAction:
    """Button that posts a form.

    Attributes:
        path: Path of the form.
        fields: Hidden fields.
    """

    label: Key
    path: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table:
    """Table, or a text if it is empty.

    Attributes:
        columns: Headers: keys of the catalogue without `column.`; the kind of the cells aligns
            them.
        following: Link to the next page; empty: none.
        actions: Actions of each row, if the login may take them.
    """

    title: Key
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: Key = Key("table.empty")
    following: str = ""
    actions: Sequence[Sequence[RowAction]] = ()
    kind: str = "table"


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart as SVG text, with links to other ranges.

    Attributes:
        ranges: Label, link and whether it is the present one.
        moves: Label and link of neighbouring ranges.
    """

    title: Key
    svg: str
    ranges: Sequence[tuple[Key, str, bool]] = ()
    moves: Sequence[tuple[Key, str]] = ()
    note: str = ""
    kind: str = "chart"


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Text of several lines."""

    title: Key
    text: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Notice:
    """Fact or fault above other blocks."""

    text: Key
    detail: str = ""
    state: str = ""
    kind: str = "notice"


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """Progress of work: a bar with both numbers."""

    label: Key
    value: int
    total: int
    kind: str = "progress"


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a form.

    Attributes:
        options: Values of a selection; empty: an input.
    """

    name: str
    label: Key
    value: str = ""
    type: str = "text"
    options: Sequence[tuple[str, Key]] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """Form: a search by GET, or an action by POST.

    Attributes:
        hidden: Names and values that are sent with it.
    """

    label: Key
    path: str
    fields: Sequence[Field]
    method: str = "get"
    hidden: Sequence[tuple[str, str]] = ()
    title: Key = Key("")
    kind: str = "form"


@dataclass(frozen=True, slots=True)
class PageContent:
    """Content of a page.

    Attributes:
        title: Key of the title.
        subject: Name of what the page shows, after the title.
        live: Whether the page is sent again when it changes.
        location: Path that the browser opens instead, after an action; a reload does not repeat it.
    """

    title: Key
    blocks: Sequence[object] = field(default_factory=list)
    subject: str = ""
    live: bool = False
    location: str = ""
