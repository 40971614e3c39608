"""Comparison of DueMQ and Apache RocketMQ under the same loads.

    python -m benchmarks.run                      default loads, full size (about 30 minutes)
    python -m benchmarks.run --scale 0.01         quick functional check
    python -m benchmarks.run --only drain,crash   selected loads; --list prints their names
    python -m benchmarks.run --timers             timers (about 20 minutes)
    python -m benchmarks.run --migration          migration of levels (about 15 minutes)
    python -m benchmarks.run --replication        replicas and failover (about 10 minutes)

Each load runs on a fresh, warmed-up broker with an empty store, so that loads do not affect each
other. The two servers run a load one directly after the other, and repetitions cycle through all
loads, so that other programs affect all of them alike. Compare ratios, on an otherwise idle
machine.
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
KEYS = {"timerWheelEnable": "true"}  # other keys have the defaults of each broker
ACCOUNTS = {APACHE: accounts.KEYS | accounts.PROVIDERS, OURS: accounts.KEYS}
USER = Credentials("bench", "bench-secret")
PERMISSIONS = {"Topic:bench*": ["Pub", "Sub", "Create", "Get"], "Group:g_wireload": ["Sub"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run."""

    loads: list[Load]
    servers: list[str]
    scale: float
    repeat: int
    heap: str
    out: Path
    work_dir: Path | None


def main(words: list[str]) -> int:
    """Run the loads, print the table, save the figures; return 1 if a load failed."""
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
    """Return the selected servers that support a load."""
    servers = [OURS] if load.ours_only else options.servers
    return [server for server in servers if server != OURS or not load.apaches_only]


def try_once(outcome: Outcome, options: Options, wireload: Path) -> None:
    """Run a load once; add its figures or its error to the outcome."""
    try:
        with machine.shared_with_others() as shared:
            metrics = measure(outcome.load, outcome.server, options, wireload)
        named = {"work of others": shared.others, "stolen by the host": shared.stolen}
        metrics += [Metric(name=n, value=v, unit="cores", better="less") for n, v in named.items()]
        outcome.runs.append(metrics)
    except Exception as error:  # a failed load does not stop the others
        outcome.error = f"{type(error).__name__}: {error}"
        print(outcome.error, file=sys.stderr)


def measure(load: Load, name: str, options: Options, wireload: Path) -> list[Metric]:
    """Run one load on a fresh server or group, or without a server, in an empty folder."""
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
                steps = accounts.user_steps(USER, PERMISSIONS)
                accounts.prepare(server.broker_address, accounts.ROOT, steps)
                bench.credentials = USER
            if not load.keys:
                bench.warm_up()
            return load.run(bench)
    finally:
        server.stop()


def apache(home: Path, options: Options) -> Server:
    """Return Apache's broker, with a heap of fixed size."""
    return Apache("5.3.3", home, keys=KEYS, heap=options.heap, fixed_heap=True)


def ours(home: Path, options: Options) -> Server:
    """Return a DueMQ broker."""
    del options
    return DueMQ(home, keys=KEYS)


SERVERS: dict[str, Callable[[Path, Options], Server]] = {APACHE: apache, OURS: ours}


def parse(words: list[str]) -> Options:
    """Parse the command line; exit with a message if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.run", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--only", default="", help="comma-separated names of loads")
    parser.add_argument(
        "--all", action="store_true", help="also run the loads that are not default"
    )
    parser.add_argument("--timers", action="store_true", help="run the timer loads")
    parser.add_argument("--migration", action="store_true", help="run the migration loads")
    parser.add_argument("--replication", action="store_true", help="run the replication loads")
    parser.add_argument("--list", action="store_true", help="list the loads and exit")
    parser.add_argument(
        "--servers", default=f"{APACHE},{OURS}", help="comma-separated; the first is the base"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor of message counts")
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
        parser.error(f"unknown load or server: {unknown}")
    chosen = [LOADS[n] for n in names] or [x for x in LOADS.values() if _is_selected(x, args)]
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
    """Return the command line without local paths."""
    text = " ".join(["python -m benchmarks.run", *words])
    return re.sub(r" --(out|work-dir)[ =]\S+", "", text)


def _is_selected(load: Load, args: argparse.Namespace) -> bool:
    kinds = [
        (args.timers, load.timers),
        (args.migration, load.migration),
        (args.replication, load.replication),
    ]
    if any(is_selected for is_selected, _ in kinds):
        return any(is_selected and is_of_kind for is_selected, is_of_kind in kinds)
    return bool(load.default or args.all)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
