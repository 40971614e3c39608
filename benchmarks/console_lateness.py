"""Lateness of deliveries, and processor time of the broker, without and with use of the console.

    python -m benchmarks.console lateness [pending] [decided] [rounds] [seconds]

One broker delivers 500 timers per second all the time. In each round the program measures some
seconds without use of the console, with open live pages, without it again, and with open pages
while it lists and cancels `decided` timers. The figures of a row are those of all its rounds, so
that other work of the machine is in each row alike. They are written to
docs/figures/console-lateness.json.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from benchmarks import machine
from benchmarks.bench import WIRELOAD, Bench
from benchmarks.fill import fill_store
from benchmarks.loads.timers import DELAY_MS, TRICKLE_PER_S, trickled
from tests.interop.programs import go_program
from tests.support.accounts import KEYS, ROOT
from tests.support.child_process import Child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import free_ports, listening
from tests.support.wait_until import until

TOPIC: Final = "bench"
HOUR_MS: Final = 3_600_000
FIRST_HOUR, LAST_HOUR = 1, 47  # due times of the filler
PAGES: Final = 5
PAGE: Final = "/events/?span=1h"
READY_S, TIMEOUT_S = 60.0, 300.0
QUIET, OPEN, BULK = "no page", f"{PAGES} pages", f"{PAGES} pages and a bulk decision"
SHARES: Final = (0.5, 0.99, 0.999)
FIGURES: Final = Path(__file__).parents[1] / "docs" / "figures" / "console-lateness.json"
Decide = Callable[[httpx.Client, Child, dict[str, str]], dict[str, float]]


@dataclass
class Row:
    """Measurements of one kind of use.

    Attributes:
        late_counts: Number of deliveries by lateness in ms.
        cpu_s: Processor time of the broker.
        seconds: Duration.
        updates: Live pages that were received.
    """

    late_counts: Counter[int] = field(default_factory=Counter)
    cpu_s: float = 0.0
    seconds: float = 0.0
    updates: int = 0

    def quantile_ms(self, share: float) -> int:
        """Return the lateness of a share of the deliveries."""
        left = share * self.late_counts.total()
        for late_ms, count in sorted(self.late_counts.items()):
            left -= count
            if left <= 0:
                return late_ms
        return max(self.late_counts)

    def plain(self) -> dict[str, object]:
        """Return the figures: lateness in ms, processor time of the broker in cores."""
        quantiles = {f"p{share * 100:g}": self.quantile_ms(share) for share in SHARES}
        return {
            **quantiles,
            "max": max(self.late_counts),
            "deliveries": self.late_counts.total(),
            "broker_cores": round(self.cpu_s / self.seconds, 3),
            "updates": self.updates,
        }

    def text(self) -> str:
        """Return the figures as a line."""
        quantiles = "  ".join(f"p{share * 100:g} {self.quantile_ms(share)}" for share in SHARES)
        cores = self.cpu_s / self.seconds
        return (
            f"{quantiles}  max {max(self.late_counts)} ms of {self.late_counts.total():,} "
            f"deliveries; broker {cores:.1%} of a core; {self.updates} updates of pages"
        )


@contextmanager
def open_pages(base: str, cookies: httpx.Cookies, count: int) -> Iterator[list[int]]:
    """Keep live pages open while the block is active.

    Yields:
        List to which each update of a page appends its size in bytes.
    """
    sizes: list[int] = []
    ended = threading.Event()

    def read() -> None:
        with (
            httpx.Client(base_url=base, cookies=cookies, timeout=TIMEOUT_S) as client,
            client.stream("GET", PAGE) as stream,
        ):
            for chunk in stream.iter_raw():
                sizes.append(len(chunk))
                if ended.is_set():
                    return

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield sizes
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def measure(
    row: Row, bench: Bench, seconds: int, use: Callable[[], object], sizes: list[int]
) -> None:
    """Deliver timers for some seconds, use the console meanwhile, and add the measurements."""
    former, begin = len(sizes), time.perf_counter()
    worker = threading.Timer(DELAY_MS / 1_000, use)
    with bench.cpu() as cpu_s:
        worker.start()
        received, _ = trickled(bench, seconds)
        worker.join()
    row.seconds += time.perf_counter() - begin
    row.cpu_s += cpu_s[0]
    row.updates += len(sizes) - former
    for late_ms, count in received["late_counts"]:
        row.late_counts[late_ms] += count


def rest() -> None:
    """Do nothing with the console."""


def main(
    decide: Decide,
    pending: int = 2_000_000,
    decided: int = 500_000,
    rounds: int = 3,
    seconds: int = 20,
) -> None:
    """Fill a store, start the broker, and measure.

    Args:
        decide: Lists the hits of a search in a form, decides on them, and returns the times.
    """
    [port] = free_ports(1)
    about, decisions = machine.describe(), list[dict[str, float]]()
    rows = {name: Row() for name in (QUIET, OPEN, BULK)}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        fill_store(root / "store", pending, TOPIC)
        with DueMQ(root, keys=KEYS | {"consolePort": str(port)}) as server:
            until(lambda: listening(port), seconds=READY_S, what="the console")
            base = f"http://127.0.0.1:{port}/console"
            bench = Bench(server, go_program(WIRELOAD), 1, credentials=ROOT)
            bench.warm_up_timers()
            first_ms = int(time.time() * 1_000) + FIRST_HOUR * HOUR_MS
            step_ms = (LAST_HOUR - FIRST_HOUR) * HOUR_MS * decided // pending
            with (
                machine.shared_with_others() as shared,
                httpx.Client(base_url=base, timeout=TIMEOUT_S, follow_redirects=True) as client,
            ):
                account = {"access_key": ROOT.access_key, "secret": ROOT.secret}
                assert client.post("/login", data=account).status_code == 200
                for index in range(rounds):
                    from_ms = first_ms + index * step_ms
                    times = {"from": str(from_ms), "until": str(from_ms + step_ms)}
                    search = {"action": "cancel", "topic": TOPIC, **times}

                    def bulk(search: dict[str, str] = search) -> None:
                        decisions.append(decide(client, server.broker, search))

                    for name, use in ((QUIET, rest), (OPEN, rest), (QUIET, rest), (BULK, bulk)):
                        count = 0 if name == QUIET else PAGES
                        with open_pages(base, client.cookies, count) as sizes:
                            measure(rows[name], bench, seconds, use, sizes)
                        print(f"round {index + 1}, {name}: {rows[name].text()}", flush=True)
    print(f"\n{TRICKLE_PER_S} timers/s, {pending:,} pending; {shared.as_text()}")
    for name, row in rows.items():
        print(f"{name:32s} {row.text()}")
    used = (rows[OPEN].cpu_s / rows[OPEN].seconds) - (rows[QUIET].cpu_s / rows[QUIET].seconds)
    print(f"processor time of {PAGES} open pages: {used:.1%} of a core, {used / PAGES:.1%} a page")
    figures = {
        "what": f"lateness at the store of timers due at {TRICKLE_PER_S}/s, ms",
        "command": f"python -m benchmarks.console lateness {pending} {decided} {rounds} {seconds}",
        "machine": about | shared.as_text(),
        "pending": pending,
        "rows": {name: row.plain() for name, row in rows.items()},
        "decisions": decisions,
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
