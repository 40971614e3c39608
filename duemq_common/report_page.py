"""Pages of reports: one file each, without scripts and external resources, to attach and to print.

A report extends `templates/report_base.html` and uses the macros of `templates/report_blocks.html`.
All values are escaped; the pages are well-formed XML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from duemq_common.page_style import STYLE

TEMPLATES: Final = Path(__file__).with_name("templates")
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
NUMBER: Final = "number"
_NOT_TEXT: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"  # not allowed in XML
)
Kinded = tuple[object, str]
"""Value, and its CSS class."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Table of a report; on phones, each row is a list of names and values.

    Attributes:
        columns: Names with the classes of their headings.
        rows: Cells, one for each column.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Kinded]]

    @classmethod
    def of_columns(cls, names: str, rows: Sequence[Sequence[object]]) -> Self:
        """Return a table with names separated by `|`; `#` before a name right-aligns the column."""
        words = names.split("|")
        kinds = [NUMBER if word.startswith("#") else "" for word in words]
        columns = [(word.removeprefix("#"), kind) for word, kind in zip(words, kinds, strict=True)]
        return cls(columns, [list(zip(row, kinds, strict=True)) for row in rows])


def render_report(template: Path, **values: object) -> str:
    """Return the page of a template.

    Args:
        values: Values by name; functions are called by the template.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_without_controls,
    )
    environment.filters["count"] = "{:,}".format
    fixed = {"style": STYLE, "policy": POLICY}
    return environment.get_template(template.name).render(fixed | values)


def clean_text(text: str) -> str:
    """Return a text without characters that XML does not allow."""
    return _NOT_TEXT.sub("\ufffd", text)


def _without_controls(value: object) -> object:
    return clean_text(value) if type(value) is str else value
