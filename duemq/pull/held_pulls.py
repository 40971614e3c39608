"""Long polling: held pulls, resumed by new messages or by time. PullRequestHoldService.

    held by queue slot     dispatcher: slots that grew -> those whose filter passes a new tag code
    held by deadline       buckets of 250 ms, one task for all of them
    held by connection     a closed connection's pulls are dropped

A held pull is a future; its result is the reason why it was resumed. Everything
belongs to the event loop's thread.
PullRequestHoldService, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

import numpy as np

from delivery.plugin import Peer
from duemq.kernels import watched_slots
from duemq.net.memory_budget import HELD_PULL_BYTES, MemoryBudget
from duemq.registry.subscriptions import Subscription
from message_store.clock import Clock
from message_store.log.batch import PutBatch

BUCKET_MS = 250
HOLD_MS_MAX = 120_000
HELD_OF_PEER_MAX = 8_192
SLOTS_MAX = 256  # of one held pull; a pop of a topic with more queues is woken by the first ones
SLOT_BYTES = 64


class Wake(Enum):
    """Reason why a held pull is resumed."""

    ARRIVED = "arrived"
    TIMED_OUT = "timed out"
    STOPPING = "stopping"
    DROPPED = "dropped"  # its connection has closed


@dataclass(eq=False, slots=True)
class Held:
    """One held pull."""

    slots: tuple[int, ...]
    bucket: int
    subscription: Subscription
    peer: Peer | None
    woken: asyncio.Future[Wake]
    awaits: set[Held] | None = None  # of `_unconfirmed`, which it is in


class ConfirmedLog(Protocol):
    """The part of the message store that bounds what consumers may read."""

    @property
    def confirm_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    def when_confirmed(self, offset: int, call: Callable[[], None]) -> None: ...


class HeldPulls:
    """All held pulls. A context manager: its task resumes them at their deadline.

    Args:
        log: the log whose messages wake pulls, once consumers may read them.
        held_max: Maximum held pulls; a further one is refused.
        memory: Budget that held pulls are charged to; a pull without room is refused.
    """

    def __init__(
        self,
        clock: Clock,
        log: ConfirmedLog,
        *,
        held_max: int = 100_000,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._clock, self._log = clock, log
        self._memory = memory or MemoryBudget()
        self._held_max = held_max
        self._count = 0
        self._by_slot: dict[int, set[Held]] = {}
        self._by_bucket: dict[int, set[Held]] = {}
        self._by_peer: dict[Peer, set[Held]] = {}
        self._watched = np.zeros(64, np.uint8)  # by slot: whether it has held pulls
        self._grown = np.zeros(64, np.int32)  # slots of a batch with held pulls
        self._unconfirmed: deque[tuple[int, set[Held]]] = deque()  # log end, pulls to wake
        self._awaits_confirmed = False  # whether `_on_confirmed` will be called
        self._changed = asyncio.Event()
        self._stopping = False

    def __len__(self) -> int:
        return self._count

    def hold(
        self,
        slot: int,
        subscription: Subscription,
        peer: Peer | None,
        hold_ms: int,
        *,
        also: Sequence[int] = (),
    ) -> Held | None:
        """Give a pull a place for at most `hold_ms`; None when there is none.

        Await `held.woken`, and call `release` afterwards whatever happened.

        Args:
            slot: Slot of the queue whose next message wakes it.
            also: Slots of further queues that it reads, at most SLOTS_MAX.
        """
        slots = tuple(dict.fromkeys((slot, *also)))[:SLOTS_MAX]
        of_peer = self._of_peer(peer)
        full = self._count >= self._held_max or len(of_peer) >= HELD_OF_PEER_MAX
        if self._stopping or full or (peer is not None and peer.closed):
            return None
        if not self._memory.reserve(memory_bytes(subscription, len(slots))):
            return None
        deadline_ms = self._clock.steady_ms() + min(max(hold_ms, 0), HOLD_MS_MAX)
        bucket = -(-deadline_ms // BUCKET_MS)
        woken = asyncio.get_running_loop().create_future()
        held = Held(slots, bucket, subscription, peer, woken)
        for each in slots:
            self._by_slot.setdefault(each, set()).add(held)
            self._watch(each)
        if bucket not in self._by_bucket:
            self._changed.set()
        self._by_bucket.setdefault(bucket, set()).add(held)
        of_peer.add(held)
        self._count += 1
        return held

    def hold_on(self, held: Held) -> Held | None:
        """Give a released pull a place up to its first deadline; None when there is none."""
        left_ms = held.bucket * BUCKET_MS - self._clock.steady_ms()
        slot, *also = held.slots
        return self.hold(slot, held.subscription, held.peer, left_ms, also=also)

    def release(self, held: Held) -> None:
        """Remove a held pull; do nothing if it was removed."""
        if held not in self._by_slot.get(held.slots[0], ()):
            return
        for slot in held.slots:
            holders = self._by_slot[slot]
            holders.discard(held)
            if not holders:
                del self._by_slot[slot]
                self._watched[slot] = 0
        in_bucket = self._by_bucket[held.bucket]
        in_bucket.discard(held)
        if not in_bucket:
            del self._by_bucket[held.bucket]
        if held.peer is not None and held.peer in self._by_peer:
            self._by_peer[held.peer].discard(held)
        if held.awaits is not None:
            held.awaits.discard(held)
        self._count -= 1
        self._memory.free(memory_bytes(held.subscription, len(held.slots)))

    def on_append(self, batch: PutBatch) -> None:
        """Wake the pulls that a batch has a message for. A store dispatcher."""
        if not self._by_slot:
            return
        if self._grown.size < batch.count:
            self._grown = np.zeros(batch.count * 2, np.int32)
        count = watched_slots(batch.rows, batch.count, self._watched, self._grown)
        readable = self._log.confirm_offset >= self._log.max_offset
        for slot in self._grown[:count].tolist():
            woken = [
                held for held in self._by_slot.get(slot, ())
                if held.subscription.matches_all or _any_passes(held.subscription, batch, slot)
            ]  # fmt: skip
            if readable:
                self._wake_all(woken, Wake.ARRIVED)
            elif woken:
                self.wake_when_confirmed(woken)
            self._watched[slot] = slot in self._by_slot

    def on_replicated(self, slots: Iterable[int]) -> None:
        """Wake the pulls of queues that got messages of a master, whatever their filter."""
        for slot in slots:
            if slot < self._watched.size and self._watched[slot]:
                if self._log.confirm_offset >= self._log.max_offset:
                    self.wake_slot(slot)
                else:
                    self.wake_when_confirmed(list(self._by_slot.get(slot, ())))

    def wake_when_confirmed(self, holders: Iterable[Held]) -> None:
        """Wake pulls once consumers may read the current end of the log."""
        more = {held for held in holders if held.awaits is None}  # the others are woken earlier
        if not more:
            return
        end, unconfirmed = self._log.max_offset, self._unconfirmed
        while unconfirmed and not unconfirmed[0][1]:  # all of them were released
            unconfirmed.popleft()
        if not unconfirmed or unconfirmed[-1][0] != end:
            unconfirmed.append((end, set()))
        awaiting = unconfirmed[-1][1]
        awaiting |= more
        for held in more:
            held.awaits = awaiting
        self._await_confirmed()

    def _await_confirmed(self) -> None:
        if self._unconfirmed and not self._awaits_confirmed:
            self._awaits_confirmed = True
            self._log.when_confirmed(self._unconfirmed[0][0], self._on_confirmed)

    def _on_confirmed(self) -> None:
        """Wake the pulls whose messages are readable now; check the others again later."""
        self._awaits_confirmed = False
        confirmed = self._log.confirm_offset
        while self._unconfirmed and self._unconfirmed[0][0] <= confirmed:
            self._wake_all(self._unconfirmed.popleft()[1], Wake.ARRIVED)
        self._await_confirmed()

    def wake_slot(self, slot: int) -> None:
        """Wake every pull of a queue, whatever its filter: its progress was reset."""
        self._wake_all(self._by_slot.get(slot, ()), Wake.ARRIVED)

    def expire(self, steady_ms: int) -> None:
        """Wake the pulls whose time is over."""
        for bucket in [b for b in self._by_bucket if b * BUCKET_MS <= steady_ms]:
            self._wake_all(self._by_bucket[bucket], Wake.TIMED_OUT)

    async def run(self) -> None:
        """Expire pulls until stopped."""
        while not self._stopping:
            self._changed.clear()
            await self._clock.wait(self._changed, until_ms=self._next_expiry_ms())
            self.expire(self._clock.steady_ms())

    def _next_expiry_ms(self) -> int | None:
        """Return when the first pull expires if the clock is not stepped, None without any."""
        first = min(self._by_bucket, default=None)
        if first is None:
            return None
        left_ms = first * BUCKET_MS - self._clock.steady_ms()
        return self._clock.now_ms() + max(left_ms, 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the task; on leaving, answer every held pull."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="held pulls")
            try:
                yield self
            finally:
                self.stop()

    def stop(self) -> None:
        """Resume and remove every held pull."""
        self._stopping = True
        self._changed.set()
        for holders in list(self._by_slot.values()):
            self._wake_all(holders, Wake.STOPPING)

    def _wake_all(self, holders: Iterable[Held], why: Wake) -> None:
        for held in list(holders):
            self._wake(held, why)

    def _wake(self, held: Held, why: Wake) -> None:
        self.release(held)
        if not held.woken.done():
            held.woken.set_result(why)

    def _of_peer(self, peer: Peer | None) -> set[Held]:
        if peer is None:
            return set()
        known = self._by_peer.get(peer)
        if known is None:
            known = self._by_peer[peer] = set()
            peer.on_close(self._closed)
        return known

    def _closed(self, peer: Peer) -> None:
        self._wake_all(self._by_peer.pop(peer, ()), Wake.DROPPED)

    def _watch(self, slot: int) -> None:
        if slot >= self._watched.size:
            grown = np.zeros(max(slot + 1, self._watched.size * 2), np.uint8)
            grown[: self._watched.size] = self._watched
            self._watched = grown
        self._watched[slot] = 1


def memory_bytes(subscription: Subscription, slot_count: int = 1) -> int:
    """Return an estimate of a held pull's memory in bytes: its texts exist twice, once as tags."""
    texts = 2 * len(subscription.expression) + 96 * len(subscription.tags)
    return HELD_PULL_BYTES + texts + SLOT_BYTES * (slot_count - 1)


def _any_passes(subscription: Subscription, batch: PutBatch, slot: int) -> bool:
    """Return whether a message that a batch appended to a queue passes the filter."""
    rows = batch.filled
    stored = rows[(rows["queue_slot"] == slot) & (rows["status"] == 0)]
    return bool(subscription.mask(stored["tags_code"]).any())
