"""Benchmark loads by name."""

from __future__ import annotations

from benchmarks.bench import Load
from benchmarks.loads import (
    crash,
    drain,
    failover,
    filters,
    ingest,
    memory,
    migration,
    pops,
    ready,
    reconciliation,
    replication,
    steady,
    timer_engine,
    timer_pending,
    timers,
    v5,
)

MODULES = (
    ingest,
    drain,
    steady,
    crash,
    ready,
    memory,
    timers,
    timer_pending,
    timer_engine,
    migration,
    reconciliation,
    replication,
    failover,
    filters,
    pops,
    v5,
)
LOADS: dict[str, Load] = {load.name: load for module in MODULES for load in module.LOADS}
