"""Flips single bits in the files of a store, and compares what the next start delivers.

    python -m tests.storage_faults.bit_flips --count 1000 --seed 1

Each flip is tried on a copy of one store that holds delivered and pending messages. A flip is
*noticed* if `duemq store verify` finds it, the start is refused, or the broker logs a warning. It
*affects* a message that is lost, doubled, early, or different. Prints one JSON line for each flip.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store.errors import StoreError
from message_store.log.record import Record
from message_store.store import MessageStore
from message_store.verify import verify_store
from tests.simulation.world import Gate, World, copy_used
from tests.storage_faults.campaign import FIRST_RUN_S_MAX, in_child
from tests.storage_faults.injector import Injector
from tests.storage_faults.workload import FAR_MS, PROPERTIES, Message, Workload
from tests.support.loopback_broker import TOPICS
from timer_store.verify import TIMERS

KINDS = {
    "commitlog": "commitlog/*",
    "consume queue": "consumequeue/*/*/*",
    "index": "index/*",
    "timer log": "timerlog/*",
    "timer wheel": "timerwheel*",
    "table": "config/*",
    "checkpoint": "checkpoint",
    "recovery mark": "config/duemq.mark",
}


def make_store(home: Path) -> dict[str, Any]:
    """Make a store with delivered and pending messages; return the messages and the time."""

    async def main() -> dict[str, Any]:
        workload = Workload(home, Injector())
        await workload.live_once()
        report, world = workload.report, workload.world
        assert not report.problems, report.problems
        messages = [asdict(message) for message in report.acknowledged]
        return {"messages": messages, "now_ms": world.clock.now_ms(), "root": str(world.root)}

    return asyncio.run(main())


def flip(root: Path, chance: random.Random) -> tuple[str, str, int]:
    """Flip one bit of a used byte; return kind, file and position."""
    kind = chance.choice(sorted(KINDS))
    paths = [path for path in sorted(root.glob(KINDS[kind])) if path.is_file()]
    paths = [path for path in paths if path.stat().st_size]
    if not paths:
        return flip(root, chance)
    path = chance.choice(paths)
    used = np.flatnonzero(np.fromfile(path, np.uint8))
    if not used.size:
        return flip(root, chance)
    pos = int(chance.choice(used.tolist())) + chance.choice([-1, 0, 0, 0, 1])
    pos = min(max(pos, 0), path.stat().st_size - 1)
    with path.open("r+b") as file:
        file.seek(pos)
        byte = file.read(1)[0]
        file.seek(pos)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))
    return kind, str(path.relative_to(root)), pos


class _Warnings(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:200])


def outcome(store: dict[str, Any], copy: Path) -> dict[str, Any]:
    """Start a broker on a damaged copy, let everything come due, and compare."""
    warnings = _Warnings()
    logging.getLogger().addHandler(warnings)
    found: dict[str, Any] = {"noticed": [], "affected": []}
    report = verify_store(copy, parts=[TIMERS])
    found["noticed"] += [str(f) for f in report.findings if f.severity != "note"][:2]
    try:
        found["affected"] = asyncio.run(_affected(store, copy))
    except Exception as error:
        found["noticed"].append(f"start: {type(error).__name__}: {error}"[:300])
        found["refused"] = True
    found["noticed"] += warnings.lines[:2]
    return found


async def _affected(store: dict[str, Any], copy: Path) -> list[str]:
    world = World(copy.parent, Gate(pytest.MonkeyPatch()), random.Random(1), PROPERTIES)
    world.root = copy
    world.clock.set_ms(store["now_ms"] + 1_000)
    await world.start()
    for _ in range(3):
        await world.advance(FAR_MS)
    records = [
        (topic, record)
        for topic in TOPICS
        for queue_id in (0, 1)
        for record in _readable(world.broker.store, topic, queue_id)
    ]
    await world.stop()
    count = Counter((topic, record.body.decode("latin-1")) for topic, record in records)
    stored_ms = {record.body.decode("latin-1"): record.store_ms for _, record in records}
    affected = []
    for each in (Message(**message) for message in store["messages"]):
        if count[each.topic, each.body] != 1:
            affected.append(f"{each.body[:6]}: {count[each.topic, each.body]} times")
        elif stored_ms[each.body] < each.due_ms:
            affected.append(f"{each.body[:6]}: early")
    return affected


def _readable(store: MessageStore, topic: str, queue_id: int) -> Iterator[Record]:
    """Yield the records of a queue that can be read."""
    first, end = store.queue_bounds(topic, queue_id)
    for unit in store.units(topic, queue_id, first, max(end - first, 1)):
        with contextlib.suppress(StoreError):
            yield store.read_record(int(unit["phys_offset"]))


def runs(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each flip."""
    home = Path(tempfile.mkdtemp(prefix="bit-flips-"))
    try:
        store = in_child(lambda: make_store(home / "made"), FIRST_RUN_S_MAX)
        chance = random.Random(seed)
        for number in range(count):
            copy = home / f"copy{number}" / "store"
            shutil.copytree(store["root"], copy, copy_function=copy_used)
            kind, file, pos = flip(copy, chance)
            found = in_child(partial(outcome, store, copy), FIRST_RUN_S_MAX)
            yield {"kind": kind, "file": file, "pos": pos} | found
            shutil.rmtree(copy.parent)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def is_broken(run: dict[str, Any]) -> bool:
    """Return whether a flip broke the promise: unnoticed harm, or harm to more than one."""
    if run.get("refused"):
        return False
    return len(run["affected"]) > 1 or bool(run["affected"] and not run["noticed"])


def main(words: list[str]) -> int:
    """Flip bits; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="bit_flips")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    broken = 0
    for run in runs(options.count, options.seed):
        run["broken"] = is_broken(run)
        broken += run["broken"]
        sys.stdout.write(json.dumps(run) + "\n")
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    raise SystemExit(main(sys.argv[1:]))
