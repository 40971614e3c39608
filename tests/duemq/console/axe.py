"""axe-core from npm, for tests of accessibility; cached like the client programs."""

from __future__ import annotations

from tests.interop.apache import cache_dir
from tests.interop.programs import installed_npm_package

AXE = "axe-core@4.14.1"


def axe_source() -> str:
    """Return the script, which defines `axe` in a page."""
    folder = installed_npm_package(AXE, cache_dir() / AXE.replace("@", "-"))
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
