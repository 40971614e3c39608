"""Choice of parameter sets in `make test` (`pytest --sample`); `make test-all` runs all of them.

Each parameter set of a test with real clients or Apache's brokers costs seconds to minutes. A
sample has one set of each function: the one whose values the sample has least so far, so that each
version and each client is in it. The date decides between equals: all sets run within some days.
Of the `HALVED` files, a sample has half of the functions.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

DAY = "DUEMQ_TEST_DAY"  # environment variable: the date of a run, equal for its workers
SAMPLED = frozenset(
    {
        "tests/interop/test_apache_opens_our_store.py",
        "tests/interop/test_autoswitch_replica.py",
        "tests/interop/test_cancels_at_replicas.py",
        "tests/interop/test_controller.py",
        "tests/interop/test_grpc_proxy.py",
        "tests/interop/test_java_clients.py",
        "tests/interop/test_migration_stores.py",
        "tests/interop/test_mixed_groups.py",
        "tests/interop/test_name_servers.py",
        "tests/interop/test_offline_migration.py",
        "tests/interop/test_our_replica.py",
        "tests/interop/test_pop_clients.py",
        "tests/interop/test_pop_stores.py",
        "tests/interop/test_replica_of_ours.py",
        "tests/interop/test_timer_stores.py",
        "tests/interop/test_v5_cluster.py",
        "tests/interop/test_we_open_apache_store.py",
        "tests/simulation/test_group_migration.py",
    }
)
HALVED = frozenset(  # SAMPLED files whose functions take a minute each: half of them
    {
        "tests/interop/test_mixed_groups.py",
        "tests/interop/test_our_replica.py",
        "tests/interop/test_replica_of_ours.py",
        "tests/interop/test_timer_stores.py",
        "tests/interop/test_we_open_apache_store.py",
    }
)
SPARK = (  # minutes each, on Spark processes of their own; a sample has two of them
    "tests/reconciliation/spark/test_class_archive.py::test_java_uses_the_archive_of_an_earlier_run",
    "tests/reconciliation/test_cluster.py::test_a_cluster_of_two_workers",
    "tests/reconciliation/test_cluster.py::test_lost_executors",
    "tests/reconciliation/test_cluster.py::test_spark_connect",
    "tests/reconciliation/test_on_spark.py::test_a_watch_raises_each_alarm_once_across_restarts",
    "tests/reconciliation/test_remote.py::test_sparks_workers_read_the_bucket",
)


def set_day() -> None:
    """Set the date of the run, in the process that starts the workers."""
    os.environ.setdefault(DAY, datetime.now(UTC).date().isoformat())


def left_out(nodeids: Sequence[str]) -> set[str]:
    """Return the tests of `SAMPLED` files and `SPARK` that the sample of this day leaves out."""
    choice = random.Random(os.environ.get(DAY, ""))
    functions: dict[str, list[str]] = {}
    for nodeid in nodeids:
        if nodeid.partition("::")[0] in SAMPLED:
            functions.setdefault(nodeid.partition("[")[0], []).append(nodeid)
    uses: Counter[tuple[str, str]] = Counter()
    result = set(SPARK) - set(choice.sample(SPARK, 2))
    for function, sets in functions.items():
        file = function.partition("::")[0]
        values = {nodeid: [(file, value) for value in _values(nodeid)] for nodeid in sets}
        scores = {n: (sum(uses[v] for v in values[n]), choice.random()) for n in sets}
        chosen = min(sets, key=lambda nodeid: scores[nodeid])
        uses.update(values[chosen])
        result |= set(sets) - {chosen}
    for file in sorted(HALVED):
        names = [name for name in functions if name.startswith(f"{file}::")]
        for name in choice.sample(names, len(names) // 2):
            result |= set(functions[name])
    return result


def _values(nodeid: str) -> list[str]:
    """Return the values in the name of a parameter set: `[5.3.3-end_by_kill]` has two."""
    return nodeid.partition("[")[2].rstrip("]").split("-")
