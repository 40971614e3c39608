"""The loads by name: one file per kind of work."""

from __future__ import annotations

from benchmarks.bench import Load
from benchmarks.loads import crash, drain, ingest, memory, ready, steady, timers

LOADS: dict[str, Load] = {
    load.name: load
    for module in (ingest, drain, steady, crash, ready, memory, timers)
    for load in module.LOADS
}
