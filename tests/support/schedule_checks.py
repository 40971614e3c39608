"""Check of the occurrences of interval schedules in a store: each planned time exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from duemq_common.clock import SystemClock
from message_store.config import StoreConfig
from message_store.log.record import Record
from message_store.store import MessageStore
from tests.support.stores import records_of


def read_occurrences(config: StoreConfig, topic: str, queue_count: int) -> list[Record]:
    """Return the delivered occurrences in the queues of a topic."""
    with MessageStore(config, SystemClock()) as store:
        records = [each for queue in range(queue_count) for each in records_of(store, topic, queue)]
    return [record for record in records if "DUEMQ_SCHEDULE" in record.properties]


def check_each_once(
    records: list[Record], every_ms: Mapping[str, int], where: str
) -> dict[str, list[int]]:
    """Check that no planned time is missing, repeated or early; return the times of each schedule.

    Args:
        every_ms: Interval of each schedule, by name.
    """
    planned = {}
    for name, interval_ms in every_ms.items():
        own = [record for record in records if record.properties["DUEMQ_SCHEDULE"] == name]
        times = Counter(int(record.properties["DUEMQ_SCHEDULE_TIME"]) for record in own)
        assert times, f"no occurrence of {name}: {where}"
        repeated = [time_ms for time_ms, count in times.items() if count > 1]
        expected = set(range(min(times), max(times) + 1, interval_ms))
        missing = sorted(expected - set(times))
        assert not repeated, f"{name}: delivered twice: {repeated}, {where}"
        assert set(times) == expected, f"{name}: missing: {missing}, {where}"
        early = [
            record.properties["DUEMQ_SCHEDULE_TIME"]
            for record in own
            if record.store_ms < int(record.properties["DUEMQ_SCHEDULE_TIME"])
        ]
        assert not early, f"{name}: early: {early}, {where}"
        planned[name] = sorted(times)
    return planned
