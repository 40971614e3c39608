"""Fixtures for pytest: a broker for each test, and one for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # a session without a broker does not load it
    from duemq.testing.broker import LocalBroker


@pytest.fixture
def duemq_broker() -> Iterator[LocalBroker]:
    """Broker with an empty store and a clock that the test advances."""
    from duemq.testing.broker import LocalBroker

    with LocalBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def duemq_session_broker() -> Iterator[LocalBroker]:
    """Broker of all tests of the session, which must use topics of their own; faster."""
    from duemq.testing.broker import LocalBroker

    with LocalBroker() as broker:
        yield broker
