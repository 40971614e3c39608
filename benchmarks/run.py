"""Runs the same loads against Apache's broker and ours, one after the other, and compares.

    python -m benchmarks.run                      the default loads, full size (about 30 minutes)
    python -m benchmarks.run --scale 0.01         a quick look whether everything works
    python -m benchmarks.run --only drain,crash   some loads; --list names them
    python -m benchmarks.run --timers             everything about timers (about 20 minutes)
    python -m benchmarks.run --migration          migration of levels (about 15 minutes)
    python -m benchmarks.run --replication        replicas and failover (about 10 minutes)

Each load gets a fresh broker with an empty store for each server, warmed up, so that no load
profits or suffers from another; both servers do a load right after each other, and repetitions go
through all loads in turn, so that a busy machine is busy for all. Judge by ratio, and only on a
quiet machine.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.bench import WIRELOAD, Bench, Load, Metric
from benchmarks.loads import LOADS
from benchmarks.report import RESULTS, Outcome, save, table
from duemq.auth.signature import Credentials
from tests.interop.apache import Apache
from tests.interop.programs import go_program
from tests.support import accounts
from tests.support.duemq_server import DueMQ
from tests.support.server import Server

APACHE, OURS = "apache-5.3.3", "duemq"
KEYS = {"timerWheelEnable": "true"}  # all else is what each broker ships
ACCOUNTS = {APACHE: accounts.KEYS | accounts.PROVIDERS, OURS: accounts.KEYS}
WHO = Credentials("bench", "bench-secret")
PERMISSIONS = {"Topic:bench*": ["Pub", "Sub", "Create", "Get"], "Group:g_wireload": ["Sub"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run."""

    loads: list[Load]
    servers: list[str]
    scale: float
    repeat: int
    heap: str
    out: Path
    work_dir: Path | None


def main(words: list[str]) -> int:
    """Run, print the table, save the figures; 1 if a load failed."""
    options = parse(words)
    about = machine.describe()
    facts = {"machine": about, "scale": options.scale, "heap": options.heap, "keys": KEYS}
    facts["command"] = _command(words)
    for key, value in about.items():
        print(f"{key}: {value}")
    wireload = go_program(WIRELOAD)
    outcomes = [Outcome(load, name) for load in options.loads for name in servers_of(load, options)]
    for _ in range(options.repeat):
        for outcome in outcomes:
            print(f"{outcome.load.name} at {outcome.server} ...", flush=True)
            try_once(outcome, options, wireload)
    about["load after"] = machine.load()
    print("\n" + table(outcomes, base=options.servers[0], ours=options.servers[-1]))
    print(f"\nsaved: {save(outcomes, facts, options.out)}")
    return 1 if any(outcome.error for outcome in outcomes) else 0


def servers_of(load: Load, options: Options) -> list[str]:
    """Return the servers that a load can be measured with."""
    servers = [OURS] if load.ours_only else options.servers
    return [server for server in servers if server != OURS or not load.apaches_only]


def try_once(outcome: Outcome, options: Options, wireload: Path) -> None:
    """Add one run to the outcome, or the reason why there is none."""
    try:
        with machine.shared_with_others() as shared:
            found = measure(outcome.load, outcome.server, options, wireload)
        named = {"work of others": shared.others, "stolen by the host": shared.stolen}
        found += [Metric(name=n, value=v, unit="cores", better="less") for n, v in named.items()]
        outcome.runs.append(found)
    except Exception as error:  # one load that fails must not cost the others
        outcome.error = f"{type(error).__name__}: {error}"
        print(outcome.error, file=sys.stderr)


def measure(load: Load, name: str, options: Options, wireload: Path) -> list[Metric]:
    """Run one load against a fresh server, or alone in a fresh folder."""
    home = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=options.work_dir))
    try:
        if load.alone is not None:
            return load.alone(home, options.scale)
        if load.group is not None:
            return load.group(home, options.scale, is_apache=name == APACHE)
        server = SERVERS[name](home, options)
        server.keys |= load.keys
        if load.signed:
            server.keys |= ACCOUNTS[name]
        return _with_server(load, server, options, wireload)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _with_server(load: Load, server: Server, options: Options, wireload: Path) -> list[Metric]:
    assert load.run is not None
    try:
        with server:
            bench = Bench(server, wireload, options.scale)
            if load.signed:
                steps = accounts.user_steps(WHO, PERMISSIONS)
                accounts.prepare(server.broker_address, accounts.ROOT, steps)
                bench.who = WHO
            if not load.keys:
                bench.warm_up()
            return load.run(bench)
    finally:
        server.stop()


def apache(home: Path, options: Options) -> Server:
    """Return Apache's broker with all of its heap from the start."""
    return Apache("5.3.3", home, keys=KEYS, heap=options.heap, fixed_heap=True)


def ours(home: Path, options: Options) -> Server:
    """Return our broker."""
    del options
    return DueMQ(home, keys=KEYS)


SERVERS: dict[str, Callable[[Path, Options], Server]] = {APACHE: apache, OURS: ours}


def parse(words: list[str]) -> Options:
    """Return the options, or end the program with a message."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.run", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default="", help="names of loads, separated by commas")
    parser.add_argument("--all", action="store_true", help="also the loads that are not default")
    parser.add_argument("--timers", action="store_true", help="the loads about timers")
    parser.add_argument("--migration", action="store_true", help="the loads about migration")
    parser.add_argument("--replication", action="store_true", help="replicas and failover")
    parser.add_argument("--list", action="store_true", help="name the loads and end")
    parser.add_argument("--servers", default=f"{APACHE},{OURS}", help="which, first is the base")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies counts of messages")
    parser.add_argument("--repeat", type=int, default=1, help="runs per load; medians are shown")
    parser.add_argument("--heap", default="4g", help="heap of Apache's broker")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    parser.add_argument("--work-dir", type=Path, help="folder for the stores; default: temporary")
    args = parser.parse_args(words)
    if args.list:
        for load in LOADS.values():
            print(f"{load.name:22} {load.what}{'' if load.default else ' (not default)'}")
        raise SystemExit(0)
    names = [name for name in args.only.split(",") if name]
    servers = args.servers.split(",")
    for unknown in [n for n in names if n not in LOADS] + [s for s in servers if s not in SERVERS]:
        parser.error(f"no such load or server: {unknown}")
    chosen = [LOADS[n] for n in names] or [x for x in LOADS.values() if _is_wanted(x, args)]
    return Options(
        loads=chosen,
        servers=servers,
        scale=args.scale,
        repeat=args.repeat,
        heap=args.heap,
        out=args.out,
        work_dir=args.work_dir,
    )


def _command(words: list[str]) -> str:
    """Return what was asked for, without the folders of this machine."""
    text = " ".join(["python -m benchmarks.run", *words])
    return re.sub(r" --(out|work-dir)[ =]\S+", "", text)


def _is_wanted(load: Load, args: argparse.Namespace) -> bool:
    asked = [
        (args.timers, load.timers),
        (args.migration, load.migration),
        (args.replication, load.replication),
    ]
    if any(kind for kind, _ in asked):
        return any(kind and is_of_kind for kind, is_of_kind in asked)
    return bool(load.default or args.all)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
