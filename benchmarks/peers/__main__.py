"""Comparison of DueMQ with Apache RocketMQ, NATS JetStream, Redis and PostgreSQL.

    python -m benchmarks.peers                          everything (about 40 minutes)
    python -m benchmarks.peers --scale 0.01             quick functional check
    python -m benchmarks.peers --only spike --systems duemq,nats

Each measurement starts each system with an empty store; the systems take a measurement one
directly after the other. Bodies have 100 bytes. Lateness is that at the consumer. The load
generators are Go programs on the same machine. A system that is not installed is left out with
the reason.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

from benchmarks import machine
from benchmarks.bench import WIRELOAD, Load, Metric
from benchmarks.peers.measures import MEASURES, Measure
from benchmarks.peers.others import Nats, Postgres, Redis
from benchmarks.peers.page import write_page
from benchmarks.peers.system import ApacheBroker, DueMQBroker, System
from benchmarks.report import RESULTS, Outcome, save
from tests.interop.apache import PATIENT, Apache
from tests.interop.programs import go_program
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import free_ports
from tests.support.requirements import Missing

PEERLOAD = Path(__file__).parents[1] / "peerload"
SHARED = [WIRELOAD / "stats.go", WIRELOAD / "tally.go"]
KEYS = {"timerWheelEnable": "true"}
HEAP = "4g"
MESSAGES_MIN = 64


def duemq(home: Path) -> System:
    """Return a DueMQ broker."""
    return DueMQBroker(DueMQ(home, keys=KEYS), go_program(WIRELOAD))


def apache(version: str) -> Callable[[Path], System]:
    """Return a function that returns Apache's broker of a version."""

    def of_version(home: Path) -> System:
        server = Apache(version, home, keys=KEYS | PATIENT, heap=HEAP, fixed_heap=True)
        return ApacheBroker(server, go_program(WIRELOAD))

    return of_version


def loaded(kind: type[Nats | Redis | Postgres]) -> Callable[[Path], System]:
    """Return a function that returns a system that `peerload` drives."""

    def of_kind(home: Path) -> System:
        (port,) = free_ports(1)
        return kind(home, port, go_program(PEERLOAD, shared=SHARED))

    return of_kind


SYSTEMS: dict[str, Callable[[Path], System]] = {
    "duemq": duemq,
    "apache-5.3.3": apache("5.3.3"),
    "apache-5.5.1": apache("5.5.1"),
    "nats": loaded(Nats),
    "redis": loaded(Redis),
    "postgres": loaded(Postgres),
}


def main(words: list[str]) -> int:
    """Run the measurements, save and print the figures; return 1 if one failed."""
    options = parse(words)
    about = machine.describe()
    systems = {name: SYSTEMS[name] for name in options.systems.split(",")}
    chosen = [m for m in MEASURES if not options.only or m.name in options.only.split(",")]
    outcomes: list[Outcome] = []
    facts: dict[str, dict[str, str]] = {}
    try:
        for measure, (name, make) in product(chosen, systems.items()):
            outcome = Outcome(Load(name=measure.name, what=measure.description), name)
            print(f"{measure.name}: {name} ...", flush=True)
            take(measure, make, outcome, facts, options)
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print("interrupted: what is measured is saved")
    about["load after"] = machine.load()
    command = " ".join(["python -m benchmarks.peers", *words])
    command = re.sub(r" --(out|work-dir)[ =]\S+", "", command)  # without local paths
    description = {"machine": about, "scale": options.scale, "command": command, "systems": facts}
    path = save(outcomes, description, options.out)
    print(f"saved: {path}")
    if options.page:
        write_page(path)
    return 1 if any(outcome.error for outcome in outcomes) else 0


def take(
    measure: Measure,
    make: Callable[[Path], System],
    outcome: Outcome,
    facts: dict[str, dict[str, str]],
    options: argparse.Namespace,
) -> None:
    """Take one measurement of one system; add its figures or its error to the outcome."""
    home = Path(tempfile.mkdtemp(prefix="peers-", dir=options.work_dir))
    home.chmod(0o755)
    try:
        system = make(home / "system")
        facts[outcome.server] = {
            "name": system.name,
            "settings": system.settings,
            "limits": system.limits,
        }
        count = max(MESSAGES_MIN, int(measure.messages * options.scale))
        with machine.shared_with_others() as shared, system:
            system.setup()
            metrics = measure.run(system, count)
        others = Metric(name="work of others", value=shared.others, unit="cores", better="less")
        outcome.runs.append([*metrics, others])
        for metric in metrics:
            print(f"    {metric.name:24} {metric.value:12,.3g} {metric.unit}")
    except (Missing, Exception) as error:  # a failed measurement does not stop the others
        outcome.error = f"{type(error).__name__}: {error}"
        print(outcome.error, file=sys.stderr)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line; exit with a message if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="comma-separated names of measurements")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated names")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of message counts")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    parser.add_argument("--work-dir", type=Path, help="folder for the stores; default: temporary")
    parser.add_argument("--page", action="store_true", help="also write the page of the figures")
    options = parser.parse_args(words)
    names = {measure.name for measure in MEASURES}
    for name in filter(None, options.only.split(",")):
        if name not in names:
            parser.error(f"no measurement {name}; there are {', '.join(sorted(names))}")
    for name in options.systems.split(","):
        if name not in SYSTEMS:
            parser.error(f"no system {name}; there are {', '.join(SYSTEMS)}")
    return options


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
