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

from duemq_common.lazy_names import lazy_names

if TYPE_CHECKING:
    from duemq.testing.broker import LocalBroker

__all__ = ["LocalBroker"]
__getattr__, __dir__ = lazy_names(__name__, {"duemq.testing.broker": ["LocalBroker"]})
