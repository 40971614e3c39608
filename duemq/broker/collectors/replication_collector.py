"""Metrics of a broker's replication state; unknown values have no series.

The values are those of `duemq replicas`, read at each scrape. A master has one series of each lag
for each connected replica; a replica has one for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

View = Mapping[str, object]
ROLES: Final = {"MASTER": "master", "SLAVE": "replica"}
ITSELF: Final = "itself"
ERROR_CHARACTERS_MAX: Final = 120
FAILURES: Final = ("failure", "groupFailure")
CONNECTION_GAUGES: Final = {
    "lag_bytes": ("lagBytes", 1, "Bytes of the master's log that a replica does not have."),
    "lag_messages": (
        "lagMessages",
        1,
        "Messages that a replica does not have; an estimate if it is far behind.",
    ),
    "lag_seconds": ("lagMs", 1_000, "Age of the first message that a replica does not have."),
    "replica_in_sync": ("inSync", 1, "1 while a replica is in sync."),
}
BROKER_GAUGES: Final = {
    "epoch": ("masterEpoch", 1, "Last master epoch of the group from the controller."),
    "confirmed_offset": (
        "confirmedOffset",
        1,
        "Log offset up to which enough replicas have the log.",
    ),
    "lease_seconds": ("leaseMs", 1_000, "Time for which this master may still acknowledge."),
}


class ReplicationCollector(Collector):
    """Collector of the replication state of a broker.

    Args:
        view: Returns the state as in `duemq replicas`.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        view = self._view()
        yield _role(view)
        for name, (member, unit, text) in BROKER_GAUGES.items():
            yield _gauge(name, text, [([], view.get(member), unit)])
        in_sync, replicas = view.get("syncStateSet"), view.get("replicas")
        size = len(in_sync) if isinstance(in_sync, list) else None
        yield _gauge("sync_state_set", "Members of the sync state set.", [([], size, 1)])
        count = len(replicas) if isinstance(replicas, list) else None
        yield _gauge("connected_replicas", "Replicas connected to this master.", [([], count, 1)])
        for name, (member, unit, text) in CONNECTION_GAUGES.items():
            values = [([replica], each.get(member), unit) for replica, each in _replicas(view)]
            yield _gauge(name, text, values, ["replica"])
        yield _failure(view)


def _replicas(view: View) -> Iterator[tuple[str, View]]:
    """Yield name and state of each replica; the name is the id, or the address without a group."""
    if view.get("role") == "SLAVE":
        yield ITSELF, view
    connections = view.get("replicas")
    for each in connections if isinstance(connections, list) else ():
        yield str(each["address"] if each["id"] is None else each["id"]), each


def _role(view: View) -> Metric:
    family = GaugeMetricFamily("duemq_replication_role", "1 for the role.", labels=["role"])
    role = ROLES.get(str(view.get("role")))
    if role is not None:
        family.add_metric([role], 1)
    return family


def _gauge(
    name: str,
    text: str,
    values: list[tuple[list[str], object, int]],
    labels: list[str] | None = None,
) -> Metric:
    """Return a family of the known values, each divided by its unit."""
    family = GaugeMetricFamily(f"duemq_replication_{name}", text, labels=labels or [])
    for label_values, value, unit in values:
        if isinstance(value, int):
            family.add_metric(label_values, value / unit)
    return family


def _failure(view: View) -> Metric:
    """Return the last errors, with N instead of numbers to limit the number of label values."""
    text = "1 for the last error; N replaces the numbers in its text."
    family = GaugeMetricFamily("duemq_replication_failure", text, labels=["error"])
    for member in FAILURES:
        if error := str(view.get(member) or ""):
            family.add_metric([re.sub(r"[0-9]+", "N", error)[:ERROR_CHARACTERS_MAX]], 1)
    return family
