"""Rendering of pages: Jinja templates, formats of values, headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from duemq.console.catalogue import LANGUAGES, Translate, translator
from duemq.http.endpoints import JsonValue
from duemq_common.charts import MS_MAX
from duemq_common.text import binary_size, duration

HERE: Final = Path(__file__).parent
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render(template: str, language: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Return the response with a template in one language."""
    return HTMLResponse(text_of(template, language, **values), status, HEADERS)


def text_of(template: str, language: str, **values: object) -> str:
    """Return the text of a template."""
    text = translator(language)
    environment = _environment()
    shown = {"t": text, "language": language, "languages": LANGUAGES, "show": _shown_by(text)}
    return environment.get_template(template).render(shown | values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown_by(text: Translate) -> Callable[..., str]:
    """Return the function that formats a value of a kind; None is unknown."""

    def shown(value: JsonValue, kind: str = "text") -> str:
        if value is None:
            return text("value.unknown")
        match kind:
            case "key":
                return text(value)
            case "number":
                return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
            case "time":
                return time_of_ms(value) if value else text("value.none")
            case "ms":
                return duration(value)
            case "bytes":
                return binary_size(value)
        return str(value)

    return shown


def time_of_ms(ms: int) -> str:
    """Return a time in UTC; milliseconds only if they are not 0."""
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    text = f"{datetime.fromtimestamp(ms // 1_000, UTC):%Y-%m-%d %H:%M:%S}"
    return f"{text}.{ms % 1_000:03d}" if ms % 1_000 else text
