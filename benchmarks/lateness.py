"""Chart of timer lateness, for DueMQ and Apache RocketMQ.

    python -m benchmarks.lateness              measure both brokers (500 timers/s for 60 s), draw
    python -m benchmarks.lateness --draw-only  draw from docs/figures/timer-lateness.json

The program writes timer-lateness.json, .svg and .png to docs/figures. Drawing needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.bench import WIRELOAD, Bench, Found
from benchmarks.loads.timers import TRICKLE_PER_S, trickled
from benchmarks.run import APACHE, OURS, SERVERS, parse
from tests.interop.programs import go_program

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
NAME = "timer-lateness"
TITLES = {APACHE: "Apache RocketMQ 5.3.3", OURS: "DueMQ"}
COLOURS = {APACHE: "#c0504d", OURS: "#1f6f8b"}
MARKS = ("p50", "p99", "p99.9")
TAIL = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def main(words: list[str]) -> int:
    """Measure, except with --draw-only, and draw the chart."""
    parser = argparse.ArgumentParser(prog="benchmarks.lateness")
    parser.add_argument("--draw-only", action="store_true", help="draw earlier measurements")
    parser.add_argument("--scale", type=float, default=1.0, help="share of a minute")
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder of the figures")
    args = parser.parse_args(words)
    args.out.mkdir(parents=True, exist_ok=True)
    numbers = args.out / f"{NAME}.json"
    if not args.draw_only:
        numbers.write_text(as_text(measured(args.scale)))
    draw(json.loads(numbers.read_text()), args.out)
    return 0


def measured(scale: float) -> dict[str, Any]:
    """Measure both brokers, one after the other; return the lateness and facts of the machine."""
    about, wireload = machine.describe(), go_program(WIRELOAD)
    summaries: dict[str, Found] = {}
    with machine.shared_with_others() as shared:
        for name in (APACHE, OURS):
            print(f"{name} ...", flush=True)
            with tempfile.TemporaryDirectory(prefix=f"lateness-{name}-") as home:
                server = SERVERS[name](Path(home), parse([]))
                with server:
                    bench = Bench(server, wireload, scale)
                    bench.warm_up()
                    summaries[name] = summary(trickled(bench)[0])
    about["load after"] = machine.load()
    about |= shared.as_text()
    return {
        "what": f"lateness at the store of timers sent at {TRICKLE_PER_S}/s, due 3 s later, ms",
        "command": "python -m benchmarks.lateness",
        "machine": about,
        "servers": summaries,
    }


def summary(received: Found) -> Found:
    """Return the distribution of lateness, and counts of delivery errors."""
    kept = ("received", "lost", "duplicates", "early", "late_at_store_ms", "late_counts")
    return {name: received[name] for name in kept}


def as_text(numbers: dict[str, Any]) -> str:
    """Return JSON with each pair of lateness and count on one line."""
    text = json.dumps(numbers, indent=1) + "\n"
    return re.sub(r"\[\s+(-?\d+),\s+(\d+)\s+\]", r"[\1, \2]", text)


def draw(numbers: dict[str, Any], folder: Path) -> None:
    """Draw the share of timers by minimum lateness, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": NAME, "font.size": 10})
    figure, axes = pyplot.subplots(figsize=(8, 4.8))
    for name, results in numbers["servers"].items():
        late_ms, counts = np.array(results["late_counts"]).T
        later = 1 - np.cumsum(counts) / counts.sum()
        shares = np.concatenate([[1.0], later]).clip(0.5 / counts.sum())
        late = (
            np.concatenate([[0], late_ms.clip(0)]) + 1
        )  # shifted by 1 ms: a logarithmic axis has no 0
        axes.step(late, shares, where="post", color=COLOURS[name], label=label(name, results))
        axes.fill_between(late, shares, 1e-6, step="post", color=COLOURS[name], alpha=0.08)
    axes.set(xscale="log", yscale="log", ylim=(1e-5, 1.2), xlim=(1, None))
    ticks = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
    top = max(results["late_counts"][-1][0] for results in numbers["servers"].values())
    shown = [tick for tick in ticks if tick <= 1.5 * top]
    axes.set_xticks([tick + 1 for tick in shown], [f"{tick:,}" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_yticks([1 - share for share in TAIL], [_share(1 - share) for share in TAIL])
    axes.set_xlabel("later than due, ms (at the store)")
    axes.set_ylabel("timers that are later")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.15), frameon=False)
    axes.set_title(f"Timers at {TRICKLE_PER_S}/s: how late they are stored", loc="left")
    about = numbers["machine"]
    busy, stolen = about["work of others, cores"], about.get("stolen by the host, cores")
    facts = f"{about['cores']} cores, {busy} busy with other work"
    facts += f", {stolen} stolen by the host" if stolen else ""
    axes.set_title(facts, loc="right", fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / f"{NAME}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{NAME}.png", dpi=130, metadata={"Software": None})


def label(name: str, results: Found) -> str:
    """Return the legend text of one broker."""
    late = results["late_at_store_ms"]
    marks = ", ".join(f"{mark} {late[mark.replace('.', '')]:,.0f}" for mark in MARKS)
    return f"{TITLES[name]}: {marks} ms"


def _share(share: float) -> str:
    return f"{share * 100:.4g} %"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
