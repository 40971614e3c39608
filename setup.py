"""Build of the distribution: the README of package indexes, with absolute links.

`pyproject.toml` has everything else.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

TOP = Path(__file__).resolve().parent


def absolute_links(text: str, documentation: str) -> str:
    """Return a page of the top directory whose links lead to the documentation site."""

    def link(match: re.Match[str]) -> str:
        page = match[1].removeprefix("docs/")
        is_page = page.endswith((".md", "/"))
        return (
            f"]({documentation}/{page.removesuffix('.md').rstrip('/') + '/' if is_page else page}"
        )

    return re.sub(r"\]\((?!\w+:|#)([^)#]+)", link, text)


project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
setup(
    long_description=absolute_links(
        (TOP / "README.md").read_text(encoding="utf-8"), project["urls"]["Documentation"]
    ),
    long_description_content_type="text/markdown",
)
