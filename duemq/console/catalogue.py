"""Texts of the console in English and Chinese: `catalogue.toml` has a table for each key."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}
TEXTS: Final[dict[str, dict[str, str]]] = tomllib.loads(
    Path(__file__).with_name("catalogue.toml").read_text("utf-8")
)

Translate = Callable[..., str]
"""Returns the text of a key; named values replace `{name}`."""


def translator(language: str) -> Translate:
    """Return the function that returns texts in one language."""

    def text(key: str, **values: object) -> str:
        return TEXTS[key][language].format(**values)

    return text


def language_of(chosen: str, accepted: str) -> str:
    """Return the language of a request.

    Args:
        chosen: Language that the cookie names.
        accepted: Header `Accept-Language`; the first language that the catalogue has is used.
    """
    for part in [chosen, *accepted.split(",")]:
        language = part.strip().partition(";")[0].partition("-")[0].lower()
        if language in LANGUAGES:
            return language
    return "en"
