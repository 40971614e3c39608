"""Search for the highest rate of messages at which deliveries stay on time.

The rate is doubled after each window until the 99 % quantile of the lateness exceeds a limit, with
single messages, and with messages that a producer sends to one queue at a time. Levels are short,
so that a window has the deliveries of its own sends.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.many.clients import create_topics
from benchmarks.many.measurement import OURS, Figures, measure_load, new_broker
from benchmarks.many.sizes import Sizes

LATE_MS_MAX: Final = 1_000
RECEIVED_SHARE_MIN: Final = 0.8  # of the accepted messages of a window
FIRST_RATE: Final = 500
RATES_MAX: Final = 12
LEVELS: Final = 2  # of 1 s and 5 s
TOGETHER: Final = (1, 32)
STEP_S: Final = 30


def search(root: Path, sizes: Sizes, step_s: int = STEP_S, name: str = OURS) -> dict[str, Any]:
    """Return the rows of both searches, by the number of messages sent together."""
    rates = tuple(FIRST_RATE << number for number in range(RATES_MAX))
    steps = replace(sizes, rates=rates, levels=LEVELS, window_s=step_s)
    results = {}
    for together in TOGETHER:
        print(f"rates with {together} messages together", file=sys.stderr, flush=True)
        with new_broker(root / f"rates-{together}", name) as (server, metrics_port):
            create_topics(server.broker_port, sizes.topics)
            figures = measure_load(
                server, replace(steps, together=together), metrics_port, is_exceeded
            )
        rows: list[Figures] = []
        for row, rate in zip(figures["windows"], rates, strict=False):
            rows.append(row | {"rate": rate, "on_time": not is_exceeded(row)})
            if not rows[-1]["on_time"]:
                break  # later windows have the last sends and deliveries of this rate
        results[str(together)] = {"windows": rows, "final": figures["final"]}
    return {"step_s": step_s, "late_ms_max": LATE_MS_MAX, "by_together": results}


def is_exceeded(row: Figures) -> bool:
    """Return whether the deliveries of a window were too late."""
    is_behind = row["received"] < RECEIVED_SHARE_MIN * row["accepted"]
    return bool(is_behind or row["late_at_store_ms"]["p99"] > LATE_MS_MAX)
