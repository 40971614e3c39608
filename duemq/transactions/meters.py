"""Meters of transactions."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from duemq.net.meters import Counts, Observations

# Upper bounds of Apache's histograms, from BrokerMetricsManager and RemotingMetricsManager
COMMIT_BOUNDS_S: Final = (5, 60, 600, 3_600, 43_200, 86_400)


class Meters(Struct, frozen=True):
    """Meters of a broker's transactions.

    Attributes:
        commits, rollbacks: Committed and rolled back transactions, by (topic,).
        commit_s: Time from born time to commit in seconds, by (topic,).
    """

    commits: Counts = field(default_factory=Counts)
    rollbacks: Counts = field(default_factory=Counts)
    commit_s: Observations = field(default_factory=lambda: Observations(COMMIT_BOUNDS_S))
