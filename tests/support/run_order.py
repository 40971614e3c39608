"""Order of the tests in a run with several workers, and the units that workers take.

A worker takes whole files, since the tests of a file share brokers and client programs. The files
of `SPARK` are one unit, since they share a Spark session, which takes half a minute of a processor
to start; those of `LEDGER` share a PostgreSQL server, those of `BROWSER` a Chromium. The tests of
`SEPARATE` start their own processes and wait for them most of the time: each is a unit, so that
several workers share these files. The files of the folder tests/ itself are one unit: they read all
files. The units that wait alternate with those that compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import pytest

SPARK = ("tests/spark_reconciliation/", "tests/duemq/cli/test_reconcile_jobs.py")
LEDGER = ("tests/migration/ledger/", "tests/duemq_common/ledger/")
BROWSER = (
    "tests/duemq/console/test_browser.py",
    "tests/duemq/console/test_operating_browser.py",
    "tests/duemq/console/test_steering_browser.py",
    "tests/duemq_common/test_report_page.py",
)
LONG = (  # begun last, one would keep one worker alone at the end
    SPARK[0],
    "tests/failover/test_failovers.py",
    "tests/crash/test_kill_broker.py",
    BROWSER[0],
    "tests/simulation/test_group.py",
    "tests/failover/test_migration_failovers.py",
    "tests/failover/test_v5_failover.py",
    "tests/interop/test_grpc_proxy.py",
    "tests/storage_faults/test_campaign.py",
    "tests/interop/test_sql_filters.py",
    "tests/storage_faults/test_bit_flips.py",
    "tests/crash/test_kill_migration.py",
    "tests/crash/test_live_consumers.py",
    "tests/fuzz/test_fuzz.py",
    "tests/migration/test_model.py",
    LEDGER[0],
    "tests/interop/test_java_clients.py",
    "tests/interop/test_v5_cluster.py",
    "tests/message_store/kernels/test_cache.py",
    "tests/timer_store/test_outage.py",
    "tests/",
)
SEPARATE = frozenset(
    {
        "tests/interop/test_apache_opens_our_store.py",
        "tests/interop/test_autoswitch_replica.py",
        "tests/interop/test_cancels_at_replicas.py",
        "tests/interop/test_migration_stores.py",
        "tests/interop/test_mixed_groups.py",
        "tests/interop/test_name_servers.py",
        "tests/interop/test_our_replica.py",
        "tests/interop/test_pop_stores.py",
        "tests/interop/test_replica_of_ours.py",
        "tests/interop/test_timer_stores.py",
        "tests/interop/test_we_open_apache_store.py",
    }
)
WAITS = "tests/interop/"  # folder of tests that wait for other processes


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def unit_of(nodeid: str) -> str:
    """Return the name of the unit that contains a test: its folder, its file, or the test."""
    file = file_of(nodeid)
    if file in SEPARATE:
        return nodeid
    for shared in (SPARK, LEDGER, BROWSER):
        if file.startswith(shared):
            return shared[0]
    return "tests/" if file.count("/") == 1 else file


def ordered(nodeids: Sequence[str]) -> list[str]:
    """Return the tests with those of long files first; then units that wait and others alternate.

    The tests of a unit are adjacent and keep their order.
    """
    units: dict[str, list[str]] = {}
    for nodeid in nodeids:
        units.setdefault(unit_of(nodeid), []).append(nodeid)
    long = [units.pop(file) for file in LONG if file in units]
    waiting = [unit for name, unit in units.items() if name.startswith(WAITS)]
    others = [unit for name, unit in units.items() if not name.startswith(WAITS)]
    pairs = zip_longest(waiting, others, fillvalue=[])  # type: ignore[var-annotated]
    return [nodeid for unit in [*long, *(u for pair in pairs for u in pair)] for nodeid in unit]


def make_scheduler(config: pytest.Config, log: object) -> object:
    """Return a scheduler that gives units to workers, in the order of the tests."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class UnitScheduling(LoadFileScheduling):  # type: ignore[misc]
        """Scheduler of units."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return UnitScheduling(config, log)
