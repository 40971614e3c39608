"""The fixture `run` of the transport's tests."""

from __future__ import annotations

from tests.duemq.net.conftest import run as run
