"""Hooks of `mkdocs build`: pages and files outside `docs/`, and a check of assets.

README.md is the first page. Other files that a page links to become files of the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {"README.md": "index.md"} | {
    name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
}
DECISIONS: Final = "decisions/index.md"
LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)#]+)")
FOREIGN_ASSET: Final = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*stylesheet[^>]*//"""
)


def repository_path(page: str, target: str) -> str:
    """Return the path of a link's target in the repository."""
    sources = {site: source for source, site in PAGES.items()}
    folder = "" if page in sources else os.path.join("docs", os.path.dirname(page))
    return os.path.normpath(os.path.join(folder, target))


def site_path(path: str) -> str:
    """Return the path of a file of the repository in the site's sources."""
    if path == "docs/decisions":
        return DECISIONS
    return PAGES.get(path) or path.removeprefix("docs/")


def list_of_decisions() -> str:
    """Return a page with a link to each decision."""
    pages = sorted((TOP / "docs" / "decisions").glob("*.md"))
    titles = {page.name: page.read_text().partition("\n")[0].lstrip("# ") for page in pages}
    return "# Decisions\n\n" + "".join(f"- [{titles[name]}]({name})\n" for name in titles)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top directory, and files that pages link to."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(TOP / source)))
    files.append(File.generated(config, DECISIONS, content=list_of_decisions()))
    for page in files.documentation_pages():
        for match in LINK.finditer(page.content_string):
            path = repository_path(page.src_uri, match[1])
            is_inside = path.startswith("docs/") or path in PAGES
            if not is_inside and (TOP / path).is_file() and site_path(path) not in files.src_uris:
                files.append(File.generated(config, site_path(path), abs_src_path=str(TOP / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links for the paths of the site."""
    folder = os.path.dirname(page.file.src_uri) or "."

    def link(match: re.Match[str]) -> str:
        target = site_path(repository_path(page.file.src_uri, match[1]))
        return f"]({os.path.relpath(target, folder)}"

    return LINK.sub(link, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Fail if a page loads an asset from another host."""
    if match := FOREIGN_ASSET.search(output):
        raise PluginError(f"{page.file.src_uri} loads an asset from another host: {match[0]}")
    return output
