"""Processor time of bulk decisions: pages of hits, decided in slices as the broker does.

python -m benchmarks.kernels.bulk_decide_bench [pending] [decided] [action]

The requests are those of the broker (9018 and 9019), without a network and without deliveries that
are due meanwhile. `decided` is at most the number of pending timers.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import thread_time

import msgspec

from benchmarks.fill import Filler, catch_up_index, far
from delayed_delivery.pending import PendingMessages, Verdict
from duemq.messages.decide import DecideProcessor
from duemq.messages.pending_hits import PendingHitsProcessor
from duemq.net.decisions import HitDecision, HitVerdicts, PendingHits
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request, bytes_of
from message_store.config import StoreConfig
from message_store.store import MessageStore
from timer_store.config import TimerConfig
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

DAY_MS = 86_400_000


class Requests:
    """Requests of bulk decisions to one store, with their processor time."""

    def __init__(self, store: MessageStore, timers: TimerStore, clock: FakeClock) -> None:
        pending = PendingTimers(timers)

        def ports() -> Sequence[PendingMessages]:
            return (pending,)

        decisions = DecideProcessor(store, ports, [], clock, "bench")
        self._hits = PendingHitsProcessor(store, ports, decisions)
        self._clock = clock
        self.verdicts: Counter[int] = Counter()

    async def pages(self, count: int) -> list[PendingHits]:
        """Return pages with at least `count` hits, or with all."""
        pages, cursor = list[PendingHits](), "0:"
        while count > 0:
            response = await self._hits.search(
                Request(RequestCode.SEARCH_PENDING, {"cursor": cursor})
            )
            await asyncio.sleep(0)  # the client's part
            page = msgspec.msgpack.decode(bytes_of(response), type=PendingHits)
            await asyncio.sleep(0)
            pages.append(page)
            count -= len(page.keys)
            if page.cursor is None:
                break
            cursor = page.cursor
        return pages

    async def decide(self, pages: list[PendingHits], action: str) -> None:
        """Decide on the hits of all pages."""
        deliver_ms = self._clock.now_ms() + 3 * DAY_MS if action == "move" else None
        for page in pages:
            command = HitDecision(
                action=action, keys=page.keys, offsets=page.offsets, deliver_ms=deliver_ms
            )
            body = msgspec.msgpack.encode(command)
            response = await self._hits.decide(Request(RequestCode.DECIDE_HITS, {}, body))
            self.verdicts.update(
                msgspec.msgpack.decode(bytes_of(response), type=HitVerdicts).verdicts
            )


async def measure(requests: Requests, count: int, action: str) -> None:
    """Print the processor time of the search and of the decisions."""
    begin_s = thread_time()
    pages = await requests.pages(count)
    searched_s = thread_time()
    await requests.decide(pages, action)
    decided_s = thread_time()
    hits = sum(len(page.keys) for page in pages)
    for name, took_s in (("search", searched_s - begin_s), (action, decided_s - searched_s)):
        print(f"{name:10s} {hits} hits  {took_s:7.2f} s  {took_s / hits * 1e6:7.2f} us a hit")
    assert set(requests.verdicts) == {Verdict.DONE}, requests.verdicts


def main(pending: int, decided: int, action: str) -> None:
    """Fill a store, and decide on the first timers."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(root_text=str(Path(directory)))
        with MessageStore(config, clock) as store:
            timers = TimerStore(store, clock, TimerConfig())
            timers.open()
            store.add_dispatcher(timers.on_put)
            Filler(timers).fill(pending, far(clock.now_ms()))
            while timers.turn(clock.now_ms()):
                pass
            catch_up_index(store)
            asyncio.run(measure(Requests(store, timers, clock), decided, action))
            timers.close()


if __name__ == "__main__":
    words = dict(enumerate(sys.argv[1:]))
    numbers = [int(words.get(index, count)) for index, count in ((0, 500_000), (1, 200_000))]
    main(*numbers, words.get(2, "cancel"))
