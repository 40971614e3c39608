"""Style of HTML pages: console, audit report and migration history; light, dark and print.

A column of a table is as wide as its content, and a wide table scrolls in its card. Only sentences
(`words`) are broken into lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

STYLE: Final = Path(__file__).with_name("page.css").read_text("utf-8")
