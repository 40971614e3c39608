"""Offline migration of an Apache 4.9.7 store, which Apache 5.3.3 then opens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq_common.clock import SystemClock
from duemq_migration.steps.offline import migrate_offline
from message_store.log.record import Record
from message_store.store_copy import copy_store
from tests.interop.apache import Apache
from tests.interop.store_work import pull_queue
from tests.migration.steps.test_offline import GOLDEN, QUEUES, pending
from tests.support.golden_stores import copy_golden_store, manifest_lines
from tests.support.server import Server
from tests.support.wait_until import until

KEYS = GOLDEN | {"timerWheelEnable": "true", "mappedFileSizeTimerLog": "2600"}
DELIVERED_S = 180.0


def pulled(server: Server, topic: str) -> list[Record]:
    """Return the messages of a topic that are pending according to the manifest."""
    found = [record for queue in range(QUEUES) for record in pull_queue(server, topic, queue)]
    return [record for record in found if record.properties.get("UNIQ_KEY") in pending()]


@pytest.mark.extended
def test_apache_delivers_level_messages_of_an_older_apache(tmp_path: Path) -> None:
    source = copy_golden_store("apache-4.9.7-clean", tmp_path / "source")
    store_dir = tmp_path / "store"
    copy_store(source, store_dir)
    done = migrate_offline(store_dir, [], KEYS, operator="", now_ms=SystemClock().now_ms())
    assert sum(done.moved.values()) >= len(pending())
    [topic] = {line["topic"] for line in manifest_lines("4.9.7", "sent") if line["level"] > 0}
    delays_ms = parse_levels(DEFAULT_LEVELS)
    with Apache("5.3.3", tmp_path / "apache", store_dir=store_dir, keys=KEYS) as apache:
        until(
            lambda: {r.properties["UNIQ_KEY"] for r in pulled(apache, topic)} == pending().keys(),
            seconds=DELIVERED_S,
            what="all that waited",
            poll_s=1.0,
        )
        came = pulled(apache, topic)
    assert Counter(r.properties["UNIQ_KEY"] for r in came) == dict.fromkeys(pending(), 1)
    for record in came:
        level = min(pending()[record.properties["UNIQ_KEY"]], len(delays_ms) - 1)
        assert record.store_ms >= record.born_ms + delays_ms[level]
