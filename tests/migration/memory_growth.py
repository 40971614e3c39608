"""Print the growth of memory while messages become pending: `memory_growth LOAD DIRECTORY`.

It is a process of its own, because threads of other tests allocate memory, too.
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

from message_store.log.batch import PutBatch
from tests.support.migration_rig import MigrationRig
from tests.support.stores import add_message

LEVEL, BATCH, COUNT, WARM_UP = 5, 1_000, 20_000, 2
TIMER_LOG_BYTES = 1 << 21  # of a file
LARGE_FILES = {"commitlog_file_bytes": 1 << 24, "queue_file_bytes": 1 << 20}


def send_levels(rig: MigrationRig) -> None:
    rig.send([(LEVEL, "T", n % 4, b"level") for n in range(BATCH)])
    rig.clock.advance(1)


def send_timers(rig: MigrationRig) -> None:
    """Send timers of the next day, each with its own due time."""
    batch, first_ms = PutBatch(BATCH), rig.clock.now_ms() + 3_600_000
    for n in range(BATCH):
        properties = {"TIMER_DELIVER_MS": str(first_ms + 1_000 * n)}
        add_message(rig.store, batch, "T", n % 4, b"timer", properties=properties)
    rig.put(batch)
    rig.clock.advance(1)
    rig.work()


def send_and_transfer(rig: MigrationRig) -> None:
    send_levels(rig)
    while rig.drain.step(LEVEL, BATCH).moved:
        rig.work()


LOADS: Final[dict[str, Callable[[MigrationRig], None]]] = {
    "levels": send_levels,
    "timers": send_timers,
    "transfers": send_and_transfer,
}


def growth(load: str, directory: Path) -> dict[str, int]:
    """Return the growth in bytes, and the number of pending messages."""
    rig = MigrationRig(directory, levels="1s 5s 10s 1m 2h", log_file_bytes=TIMER_LOG_BYTES)
    rig.store_changes = LARGE_FILES
    rig.open()

    def send_and_flush() -> None:
        LOADS[load](rig)
        rig.store.flush()  # blocks that are on the disk are sealed, as in a broker

    tracemalloc.start()
    for _ in range(WARM_UP):  # loads the kernels
        send_and_flush()
    before = traced_bytes()
    for _ in range(COUNT // BATCH):
        send_and_flush()
    grown = traced_bytes() - before
    tracemalloc.stop()
    pending = rig.level_pending + rig.timers.counts.total
    rig.close()
    return {"grown": grown, "pending": pending}


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(growth(sys.argv[1], Path(sys.argv[2]))))
