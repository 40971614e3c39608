"""Damages the files of a store, and compares what clients see with the undamaged store.

    python -m tests.storage_faults.bit_flips --count 1000 --seed 1             single bits
    python -m tests.storage_faults.bit_flips --damage page --count 1000        misplaced pages

Each damage is tried on a copy of a store that holds delivered and pending messages, stopped or
killed. It is *noticed* if `duemq store verify` finds it, the start is refused, or the broker logs a
warning that it does not log without the damage. It is *broken* if clients see anything differently
and it was not noticed, or if more is lost than its kind of file allows (`LOST_MAX`).

Prints one JSON line for each damage.
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
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation.world import copy_used
from tests.storage_faults.campaign import ChildFailed, in_child
from tests.storage_faults.damage import KINDS, Damage, flip, misplace
from tests.storage_faults.damaged_store import differences, examine, fates, make_store
from tests.storage_faults.workload import PROPERTIES

RUN_S_MAX = 120
PAGE_BYTES = 4_096
LARGE_FILES = {  # so that a file has several pages
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeTimerLog": str(52 * 400 + 16),
    "maxIndexNum": "1000",
    "maxHashSlotNum": "500",
}
OFTEN = ("commit log", "consume queue", "timer log", "timer wheel")  # they have the messages
LOST_MAX = {"flip": {"commit log": 1}, "page": {"commit log": 1 + PAGE_BYTES // 400 + 1}}
"""Messages that a damage may cost; what other files hold is derived from the commit log."""


def make_stores(home: Path, damage: str) -> Iterator[dict[str, Any]]:
    """Yield stores to damage, each with what is seen of it without damage.

    It runs in this process, so that each child begins with compiled kernels.
    """
    for killed in (False, True):
        made = home / ("killed" if killed else "stopped")
        properties = PROPERTIES if damage == "flip" else PROPERTIES | LARGE_FILES
        rounds = 5 if damage == "flip" else 40
        store = asyncio.run(make_store(made, properties, rounds=rounds, killed=killed))
        copy = home / "reference" / "store"
        shutil.copytree(store["root"], copy, copy_function=copy_used)
        store["reference"] = examine(store, copy)
        shutil.rmtree(copy)
        once = {name for name, seen in store["reference"]["seen"]["messages"].items()
                if len(seen) == 1}  # fmt: skip
        assert store["messages"].keys() <= once, sorted(store["messages"].keys() - once)
        store["killed"] = killed
        yield store


def try_damage(store: dict[str, Any], damage: Damage, kind: str, seed: str) -> dict[str, Any]:
    """Damage a copy of a store, and return what comes of it."""
    home = Path(tempfile.mkdtemp(prefix="damaged-"))
    try:
        root = home / "store"
        shutil.copytree(store["root"], root, copy_function=copy_used)
        place = damage(root, kind, random.Random(seed))
        if place is None:
            return {}
        run = asdict(place) | {"seed": seed, "killed": store["killed"]}
        try:
            found = in_child(partial(examine, store, root), RUN_S_MAX)
        except ChildFailed as error:
            return run | {"problems": [f"{error.outcome}: {error}"]}
        return run | outcome(store["reference"], found, kind, "flip" if damage is flip else "page")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def outcome(
    reference: dict[str, Any], found: dict[str, Any], kind: str, damage: str
) -> dict[str, Any]:
    """Compare what was found with what is seen of the undamaged store."""
    noticed = [line for part in ("findings", "warnings") for line in found[part]
               if line not in reference[part]]  # fmt: skip
    if "refused" in found:
        return {"noticed": [found["refused"], *noticed[:2]], "refused": True, "problems": []}
    found["seen"] = json.loads(json.dumps(found["seen"]))
    before = json.loads(json.dumps(reference["seen"]))
    changed = differences(before, found["seen"])
    fate = fates(before, found["seen"], changed["messages"])
    problems = []
    if any(changed.values()) and not noticed:
        problems.append("not noticed")
    if len(changed["messages"]) > LOST_MAX[damage].get(kind, 0):
        problems.append(f"messages: {dict(fate)}")
    run = {"noticed": noticed[:3], "fates": dict(fate), "problems": problems}
    return run | {name: names[:8] for name, names in changed.items() if names}


def runs(count: int, seed: int, damage_name: str, kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each damage."""
    home = Path(tempfile.mkdtemp(prefix="damage-"))
    damage = flip if damage_name == "flip" else misplace(PAGE_BYTES)
    try:
        stores = list(make_stores(home, damage_name))
        chance = random.Random(seed)
        kinds = kinds + [kind for kind in OFTEN if kind in kinds] * 3
        for number in range(count):
            run: dict[str, Any] = {}
            while not run:
                kind, store = chance.choice(kinds), chance.choice(stores)
                run = try_damage(store, damage, kind, f"{seed}.{number}.{chance.random()}")
            yield run
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main(words: list[str]) -> int:
    """Damage stores; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="bit_flips", description=(__doc__ or ""))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--damage", choices=["flip", "page"], default="flip")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS))
    options = parser.parse_args(words)
    broken = 0
    for run in runs(options.count, options.seed, options.damage, options.kind or sorted(KINDS)):
        broken += bool(run["problems"])
        sys.stdout.write(json.dumps(run) + "\n")
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    raise SystemExit(main(sys.argv[1:]))
