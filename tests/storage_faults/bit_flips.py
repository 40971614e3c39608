"""Campaign of damaged files: compares what clients read with the undamaged store.

    python -m tests.storage_faults.bit_flips --count 1000 --seed 1        single bits
    python -m tests.storage_faults.bit_flips --damage page --count 1000   misplaced pages
    python -m tests.storage_faults.bit_flips --damage sector              unreadable sectors
    python -m tests.storage_faults.bit_flips --seed 1 --only 714          one damage of a seed again

Each damage is applied to a copy of a stopped or killed store with delivered and pending messages.
It is *noticed* if `duemq store verify` finds it, the start is refused, or the broker logs a warning
that it does not log without the damage. It is *broken* if clients read anything different and it
was not noticed, or if more messages are lost than the kind of file allows (`LOST_MAX`).

The program prints one JSON line for each damage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from message_store.log.page_guard import PAGE_BYTES
from tests.storage_faults.campaign import ChildFailed, in_child
from tests.storage_faults.damage import (
    KINDS,
    Place,
    break_sector,
    choose_page,
    flip,
    misplace,
)
from tests.storage_faults.damaged_store import differences, examine, fates, make_store
from tests.storage_faults.workload import PROPERTIES
from tests.support.bad_disk import BadDisk
from tests.support.sparse_files import copy_used

RUN_S_MAX = 300
FAILED = " failed"  # in the log line of a request that fails with a disk error
LARGE_LOG = {"mappedFileSizeCommitLog": "65536"}  # with smaller files each timer is a batch
LARGE_FILES = LARGE_LOG | {  # so that a file has several pages
    "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeTimerLog": str(52 * 400 + 16),
    "maxIndexNum": "1000",
    "maxHashSlotNum": "500",
}
OFTEN = ("commit log", "consume queue", "timer log", "timer wheel")  # files that contain messages
RECORD_BYTES_MIN = 400  # of the messages of the workload
ON_A_PAGE = PAGE_BYTES // RECORD_BYTES_MIN + 2
LOST_MAX = {
    "flip": {"commit log": 1},
    "page": {"commit log": ON_A_PAGE},
    "sector": {"commit log": ON_A_PAGE},
}
"""Maximum number of lost messages by kind of file; other files are rebuilt from the commit log."""


def make_stores(home: Path, damage: str) -> Iterator[dict[str, Any]]:
    """Yield stores to damage, each with the observations of the undamaged store.

    The stores are made in this process, so that child processes start with compiled kernels.
    """
    for killed in (False, True):
        made = home / ("killed" if killed else "stopped")
        properties = PROPERTIES | (LARGE_LOG if damage == "flip" else LARGE_FILES)
        rounds = 20 if damage == "flip" else 40
        store = asyncio.run(make_store(made, properties, rounds=rounds, killed=killed))
        copy = home / "reference" / "store"
        shutil.copytree(store["root"], copy, copy_function=copy_used)
        store["reference"] = examine(store, copy)
        shutil.rmtree(copy)
        once = {
            name for name, seen in store["reference"]["seen"]["messages"].items() if len(seen) == 1
        }
        assert store["messages"].keys() <= once, sorted(store["messages"].keys() - once)
        store["killed"] = killed
        yield store


def try_damage(store: dict[str, Any], damage: str, kind: str, seed: str) -> dict[str, Any]:
    """Damage a copy of a store and return the outcome; empty if there is no such file."""
    home, chance = Path(tempfile.mkdtemp(prefix="damaged-")), random.Random(seed)
    try:
        root = home / "store"
        shutil.copytree(store["root"], root, copy_function=copy_used)
        place = {"flip": flip, "page": misplace, "sector": choose_page}[damage](root, kind, chance)
        if place is None:
            return {}
        work = partial(examine, store, root)
        run = asdict(place) | {"seed": seed, "killed": store["killed"]}
        if damage == "sector":
            run["running"] = chance.random() < 0.5
            work = partial(with_bad_sector, store, root, place, running=run["running"])
        try:
            found = in_child(work, RUN_S_MAX)
        except ChildFailed as error:
            return run | {"problems": [f"{error.outcome}: {error}"]}
        return run | outcome(store["reference"], found, kind, damage, store["messages"])
    finally:
        shutil.rmtree(home, ignore_errors=True)


def with_bad_sector(
    store: dict[str, Any], root: Path, place: Place, *, running: bool
) -> dict[str, Any]:
    """Examine a store with a sector that becomes unreadable before or after the start."""
    disk = BadDisk(pytest.MonkeyPatch())
    damage = partial(break_sector, disk, root, place)
    found = examine(store, root, **{"after_start" if running else "before": damage})
    if running and ("refused" in found or any(FAILED in line for line in found["warnings"])):
        again = examine(store, root)  # the broker's message requests a restart
        again["warnings"] = [*found["warnings"], *again["warnings"]]
        return again
    return found


def outcome(
    reference: dict[str, Any],
    found: dict[str, Any],
    kind: str,
    damage: str,
    names: Collection[str],
) -> dict[str, Any]:
    """Compare the observations of a damaged store with those of the undamaged store.

    Args:
        names: Names of the acknowledged messages.
    """
    noticed = [
        line
        for part in ("findings", "warnings")
        for line in found[part]
        if line not in reference[part]
    ]
    if "refused" in found:
        return {"noticed": [found["refused"], *noticed[:2]], "refused": True, "problems": []}
    before, now = (json.loads(json.dumps(each["seen"])) for each in (reference, found))
    changed = differences(before, now)
    fate = fates(before, now, changed["messages"])
    problems = []
    if any(changed.values()) and not noticed:
        problems.append("not noticed")
    hit = {*changed["messages"], *changed["tagged"]}
    sent = hit & set(names)  # a changed body may look like another message
    if len(sent) > LOST_MAX[damage].get(kind, 0):
        problems.append(f"messages: {dict(fate) or 'hidden from consumers with tags'}")
    run = {"noticed": noticed[:3], "fates": dict(fate), "problems": problems}
    return run | {name: names[:8] for name, names in changed.items() if names}


def runs(
    numbers: Iterable[int], seed: int, damage: str, kinds: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of the damages of a seed, with their numbers."""
    home = Path(tempfile.mkdtemp(prefix="damage-"))
    try:
        stores = list(make_stores(home, damage))
        kinds = kinds + [kind for kind in OFTEN if kind in kinds] * 3
        for number in numbers:
            chance = random.Random(f"{seed}.{number}")
            run: dict[str, Any] = {}
            while not run:
                kind, store = chance.choice(kinds), chance.choice(stores)
                run = try_damage(store, damage, kind, f"{seed}.{number}.{chance.random()}")
            yield {"damage": damage} | run
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run the campaign; return 1 if a damage is broken."""
    parser = argparse.ArgumentParser(prog="bit_flips", description=(__doc__ or ""))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--damage", choices=sorted(LOST_MAX), default="flip")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS))
    parser.add_argument("--only", type=int)
    options = parser.parse_args(words)
    numbers = range(options.count) if options.only is None else [options.only]
    broken = 0
    for run in runs(numbers, options.seed, options.damage, options.kind or sorted(KINDS)):
        broken += bool(run["problems"])
        sys.stdout.write(json.dumps(run) + "\n")
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    raise SystemExit(main(sys.argv[1:]))
