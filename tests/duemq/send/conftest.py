"""Fixture `run`, shared with the tests of the transport."""

from __future__ import annotations

from tests.duemq.net.conftest import run as run
