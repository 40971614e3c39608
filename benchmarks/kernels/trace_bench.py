"""Cost of traces on the event loop: one attribute test a pull when off, one search a batch when on.

python -m benchmarks.kernels.trace_bench
"""

from __future__ import annotations

import time
from collections.abc import Callable

from duemq.broker.tracing.contexts import sampled_contexts
from duemq.metrics.put_get_stats import BrokerStats
from message_store.queues.topic_table import TopicTable

MESSAGES, REPEAT = 1_000, 5
PULLS = 100_000
BODY = bytes(100)
PROPERTIES = (
    b"UNIQ_KEY\x01C000020264DA11AEA19C8D5BCAD30001\x02WAIT\x01true\x02TIMER_DELAY_MS\x0160000\x02"
)


def best_s(work: Callable[[], object]) -> float:
    """Return the shortest time of some runs."""
    times = []
    for _ in range(REPEAT):
        first_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - first_s)
    return min(times)


def main() -> None:
    """Print the time of a pull without traces, and that of the search in a batch."""
    stats = BrokerStats(TopicTable())

    def pulls() -> None:
        for _ in range(PULLS):
            stats.messages_got("T", "G", count=32, body=BODY)

    def tests() -> None:
        for _ in range(PULLS):
            if stats.on_pulled is not None:
                raise AssertionError

    def nothing() -> None:
        for _ in range(PULLS):
            pass

    counted_s, tested_s = best_s(pulls), best_s(tests) - best_s(nothing)
    print(
        f"off: {tested_s / PULLS * 1e9:.0f} ns a pull, {tested_s / counted_s:.3f} of its statistics"
    )
    batch = (BODY + PROPERTIES) * MESSAGES
    searched_s = best_s(lambda: list(sampled_contexts(batch)))
    print(f"on: {searched_s / MESSAGES * 1e9:.0f} ns a message without a context")


if __name__ == "__main__":
    main()
