"""The browser of the tests of the console."""

from tests.duemq.console.conftest import axe, browser

__all__ = ["axe", "browser"]
