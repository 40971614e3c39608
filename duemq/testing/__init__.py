"""Broker for the tests of an application: embedded, with a clock that the test advances.

    def test_a_reminder_is_sent(duemq_broker):
        remind(duemq_broker.address, after=timedelta(hours=2))
        assert duemq_broker.messages("reminders") == []
        duemq_broker.advance(hours=2)
        [message] = duemq_broker.messages("reminders")

pytest loads the fixtures of `duemq.testing.plugin` when the distribution is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duemq.testing.broker import LocalBroker

__all__ = ["LocalBroker"]


def __getattr__(name: str) -> object:
    """Import the broker at its first use: pytest loads this package in every session."""
    if name != "LocalBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duemq.testing.broker import LocalBroker

    return LocalBroker
