"""Put latency for runtime info (code 28): distribution, percentiles, maximum.

Source: StoreStatsService.putMessageDistributeTime, findPutMessageEntireTimePX
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

MS_MAX: Final = 10_000  # longer latencies are counted in class MS_MAX + 1
CLASSES: Final = (
    ("[<=0ms]", 0),
    ("[0~10ms]", 10),
    ("[10~50ms]", 50),
    ("[50~100ms]", 100),
    ("[100~200ms]", 200),
    ("[200~500ms]", 500),
    ("[500ms~1s]", 1_000),
    ("[1~2s]", 2_000),
    ("[2~3s]", 3_000),
    ("[3~4s]", 4_000),
    ("[4~5s]", 5_000),
    ("[5~10s]", MS_MAX),
    ("[10s~]", MS_MAX + 1),
)


class PutLatency:
    """Histogram of put latency since startup: time from receipt to response, in whole ms."""

    def __init__(self) -> None:
        self._counts = np.zeros(MS_MAX + 2, np.int64)
        self._max_ms = 0

    def add(self, latency_ms: int, count: int) -> None:
        """Add `count` messages of one batch with a latency of `latency_ms`."""
        latency_ms = max(latency_ms, 0)
        self._counts[min(latency_ms, MS_MAX + 1)] += count
        self._max_ms = max(self._max_ms, latency_ms)

    def percentile_ms(self, share: float) -> int:
        """Return the percentile `share` (0 to 1) of all latencies in ms; 0 without puts."""
        cumulative = np.cumsum(self._counts)
        total = int(cumulative[-1])
        return int(np.searchsorted(cumulative, share * total)) if total else 0

    def figures(self) -> Mapping[str, str]:
        """Return the runtime info entries."""
        cumulative = np.concatenate([[0], np.cumsum(self._counts)[[end for _, end in CLASSES]]])
        counts = np.diff(cumulative).tolist()
        names = [name for name, _ in CLASSES]
        return {
            "putMessageEntireTimeMax": str(self._max_ms),
            "putMessageDistributeTime": "".join(
                f"{name}:{count} " for name, count in zip(names, counts, strict=True)
            ),
            "putLatency99": f"{self.percentile_ms(0.99):.2f}",
            "putLatency999": f"{self.percentile_ms(0.999):.2f}",
        }
