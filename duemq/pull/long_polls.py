"""Long polls: pulls and pops on hold, resumed by new messages or at their deadline.

    index by queue slot     the store dispatcher resumes pulls whose filter matches a new message;
                            only the first of the pops that share their messages
    index by deadline       buckets of 250 ms, one task for all pulls
    index by connection     the pulls of a closed connection are dropped

Pops of one group share their messages, so a message resumes only one of them: with 500 consumers,
each message would otherwise cause 500 searches of the queues. A pop that leaves messages in the
queue, and a resumed pop that cannot read any, calls `resume_shared` to resume the next one.

A long poll resumes its holder, or is a future whose result is the reason. Holders are resumed in
order, at most `RESUMED_PER_TURN` in a turn of the event loop: thousands of pulls need no tasks, and
few objects that a collection of garbage visits. Not thread-safe: all methods run on the event
loop's thread.

Source: PullRequestHoldService, NotifyMessageArrivingListener
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol, Self

from msgspec import Struct, field

from duemq.filters import BYTES_PER_CHAR
from duemq.net.memory import LONG_POLL_BYTES, MemoryBudget
from duemq.registry.subscriptions import Subscription
from duemq_common.clock import Clock
from duemq_common.request import Peer
from message_store.log.batch import PutBatch

if TYPE_CHECKING:
    from message_store.store import MessageStore

BUCKET_MS = 250
HOLD_MS_MAX = 120_000
POLLS_PER_PEER_MAX = 8_192
SLOTS_MAX = 16_384  # queues per long poll; a pop of more queues is resumed by the first ones
SLOT_BYTES = 64
RESUMED_PER_TURN = 64


class ResumeReason(Enum):
    """Reason why a long poll is resumed."""

    ARRIVED = "arrived"
    TIMED_OUT = "timed out"
    STOPPING = "stopping"
    DROPPED = "dropped"  # its connection has closed


class PollHolder(Protocol):
    """Request on hold."""

    def resume(self, reason: ResumeReason) -> None:
        """Continue the request, whose long poll is released. Must not raise."""


class LongPoll(Struct, eq=False, gc=False):  # `release` breaks the cycle with its group
    """A pull or pop on hold.

    Attributes:
        holder: Is resumed; None: the future is.
        reason: Reason of the resumption, for the holder.
        awaits: Set in `LongPolls._unconfirmed` that contains the pull; None: no set contains it.
    """

    sharing: PollGroup
    bucket: int
    peer: Peer | None
    holder: PollHolder | None = None
    future: asyncio.Future[ResumeReason] | None = None
    reason: ResumeReason = ResumeReason.DROPPED
    awaits: set[LongPoll] | None = None

    @property
    def resumed(self) -> asyncio.Future[ResumeReason]:
        """Future whose result is the reason of the resumption, of a poll without a holder."""
        assert self.future is not None
        return self.future

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of the queues whose next message resumes the pull."""
        return self.sharing.slots

    @property
    def subscription(self) -> Subscription:
        """Filter of the pull."""
        return self.sharing.subscription


class PollGroup(Struct, eq=False, gc=False):
    """Group of long polls with equal share, queues and filter; a message resumes one of them.

    Attributes:
        share: See `LongPolls.hold`; None: the group has only one pull.
        members: The pulls, in the order in which they are resumed.
    """

    slots: tuple[int, ...]
    subscription: Subscription
    share: Hashable | None
    members: dict[LongPoll, None] = field(default_factory=dict)

    @property
    def key(self) -> tuple[tuple[int, ...], str, str]:
        """Key that identifies the group among all groups of the same share."""
        return self.slots, self.subscription.kind, self.subscription.expression

    def first(self) -> LongPoll | None:
        """Return the pull to resume; None if earlier messages will resume every pull."""
        return next((poll for poll in self.members if poll.awaits is None), None)


class LongPolls:
    """The long polls of a broker; a context manager whose task resumes them at their deadline.

    Args:
        log: Log of the messages that resume pulls.
        polls_max: Maximum number of long polls at a time.
        memory: Budget that long polls are charged to.
    """

    def __init__(
        self,
        clock: Clock,
        log: MessageStore,
        *,
        polls_max: int = 100_000,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._clock, self._log = clock, log
        self._memory = memory or MemoryBudget()
        self._polls_max = polls_max
        self._count = 0
        self._by_slot: dict[int, set[PollGroup]] = {}
        self._by_share: dict[Hashable, dict[Hashable, PollGroup]] = {}
        self._by_bucket: dict[int, set[LongPoll]] = {}
        self._by_peer: dict[Peer, set[LongPoll]] = {}
        self._unconfirmed: deque[tuple[int, set[LongPoll]]] = deque()  # (log end, pulls to resume)
        self._awaits_confirmed = False  # whether `_on_confirmed` will be called
        self._resumed: deque[LongPoll] = deque()  # whose holders are to be resumed
        self._is_resuming = False  # whether `_resume_holders` will be called
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
        share: Hashable | None = None,
        holder: PollHolder | None = None,
    ) -> LongPoll | None:
        """Hold a pull for at most `hold_ms`; return None if a limit is reached.

        Without a holder, the caller awaits `poll.resumed`, then calls `release` in every case.

        Args:
            slot: Slot of the queue whose next message resumes the pull.
            also: Slots of further queues; slots beyond SLOTS_MAX are ignored.
            share: A message resumes one of the pulls with an equal share, queues and filter; None:
                it resumes this pull in any case.
            holder: Is resumed, in a later turn of the event loop.
        """
        slots = tuple(dict.fromkeys((slot, *also)))[:SLOTS_MAX] if also else (slot,)
        peer_polls = self._peer_polls(peer)
        full = self._count >= self._polls_max or len(peer_polls) >= POLLS_PER_PEER_MAX
        if self._stopping or full or (peer is not None and peer.closed):
            return None
        if not self._memory.reserve(memory_bytes(subscription, len(slots))):
            return None
        deadline_ms = self._clock.steady_ms() + min(max(hold_ms, 0), HOLD_MS_MAX)
        bucket = -(-deadline_ms // BUCKET_MS)
        future = asyncio.get_running_loop().create_future() if holder is None else None
        sharing = self._sharing(PollGroup(slots, subscription, share))
        poll = LongPoll(sharing, bucket, peer, holder, future)
        sharing.members[poll] = None
        in_bucket = self._by_bucket.get(bucket)
        if in_bucket is None:
            in_bucket = self._by_bucket[bucket] = set()
            self._changed.set()
        in_bucket.add(poll)
        peer_polls.add(poll)
        self._count += 1
        return poll

    def _sharing(self, new: PollGroup) -> PollGroup:
        """Return the existing group equal to `new`; without one, add `new` to the indexes."""
        if new.share is not None:
            of_share = self._by_share.setdefault(new.share, {})
            if (sharing := of_share.get(new.key)) is not None:
                return sharing
            of_share[new.key] = new
        for each in new.slots:
            self._by_slot.setdefault(each, set()).add(new)
        return new

    def hold_again(self, poll: LongPoll) -> LongPoll | None:
        """Hold a released pull again until its original deadline; None: a limit is reached."""
        left_ms = poll.bucket * BUCKET_MS - self._clock.steady_ms()
        slot, *also = poll.slots
        share = poll.sharing.share
        return self.hold(
            slot,
            poll.subscription,
            poll.peer,
            left_ms,
            also=also,
            share=share,
            holder=poll.holder,
        )

    def release(self, poll: LongPoll) -> None:
        """Remove a long poll; ignored if it is removed already."""
        sharing = poll.sharing
        if poll not in sharing.members:
            return
        del sharing.members[poll]
        if not sharing.members:
            self._forget(sharing)
        in_bucket = self._by_bucket[poll.bucket]
        in_bucket.discard(poll)
        if not in_bucket:
            del self._by_bucket[poll.bucket]
        if poll.peer is not None and poll.peer in self._by_peer:
            self._by_peer[poll.peer].discard(poll)
        if poll.awaits is not None:
            poll.awaits.discard(poll)
            if (successor := sharing.first()) is not None:
                successor.awaits = poll.awaits
                poll.awaits.add(successor)
        self._count -= 1
        self._memory.free(memory_bytes(poll.subscription, len(poll.slots)))

    def _forget(self, sharing: PollGroup) -> None:
        """Remove a group without pulls from the indexes."""
        for slot in sharing.slots:
            polls = self._by_slot[slot]
            polls.discard(sharing)
            if not polls:
                del self._by_slot[slot]
        if sharing.share is not None:
            of_share = self._by_share[sharing.share]
            del of_share[sharing.key]
            if not of_share:
                del self._by_share[sharing.share]

    def on_append(self, batch: PutBatch) -> None:
        """Resume the pulls that match a message of the batch. A store dispatcher."""
        if not self._by_slot:
            return
        readable = self._log.confirm_offset >= self._log.max_offset
        for slot in batch.queue_slots:
            resumed = [
                poll
                for sharing in self._by_slot.get(slot, ())
                if sharing.subscription.matches_all
                or _any_matches(sharing.subscription, batch, slot)
                if (poll := sharing.first()) is not None
            ]
            if readable:
                self._resume_all(resumed, ResumeReason.ARRIVED)
            elif resumed:
                self.resume_when_confirmed(resumed)

    def on_replicated(self, slots: Iterable[int]) -> None:
        """Resume the pulls of queues with new replicated messages, regardless of their filter."""
        for slot in slots:
            if slot in self._by_slot:
                if self._log.confirm_offset >= self._log.max_offset:
                    self.resume_slot(slot)
                else:
                    self.resume_when_confirmed(self._firsts(slot))

    def resume_when_confirmed(self, polls: Iterable[LongPoll]) -> None:
        """Resume pulls when consumers may read up to the current end of the log."""
        more = {poll for poll in polls if poll.awaits is None}
        if not more:
            return
        end, unconfirmed = self._log.max_offset, self._unconfirmed
        while unconfirmed and not unconfirmed[0][1]:  # all pulls were released
            unconfirmed.popleft()
        if not unconfirmed or unconfirmed[-1][0] != end:
            unconfirmed.append((end, set()))
        awaiting = unconfirmed[-1][1]
        for poll in more:
            shared = poll.sharing.share is not None
            if shared and any(each.awaits is awaiting for each in poll.sharing.members):
                continue  # one pull per share is enough: it resumes the next one
            awaiting.add(poll)
            poll.awaits = awaiting
        self._await_confirmed()

    def _await_confirmed(self) -> None:
        if self._unconfirmed and not self._awaits_confirmed:
            self._awaits_confirmed = True
            self._log.when_confirmed(self._unconfirmed[0][0], self._on_confirmed)

    def _on_confirmed(self) -> None:
        """Resume the pulls whose messages are readable now; await the next confirmation."""
        self._awaits_confirmed = False
        confirmed = self._log.confirm_offset
        while self._unconfirmed and self._unconfirmed[0][0] <= confirmed:
            self._resume_all(self._unconfirmed.popleft()[1], ResumeReason.ARRIVED)
        self._await_confirmed()

    def resume_slot(self, slot: int) -> None:
        """Resume the pulls of a queue regardless of their filter: one pull of each share."""
        self._resume_all(self._firsts(slot), ResumeReason.ARRIVED)

    def resume_queue(self, slot: int) -> None:
        """Resume every pull of a queue whose topic has another number of queues now."""
        sharings = self._by_slot.get(slot, ())
        polls = [poll for sharing in sharings for poll in sharing.members]
        self._resume_all(polls, ResumeReason.ARRIVED)

    def resume_shared(self, share: Hashable) -> None:
        """Resume the next pull of each group of a share: its queues still have messages."""
        for sharing in list(self._by_share.get(share, {}).values()):
            poll = sharing.first() or next(iter(sharing.members))
            self._resume(poll, ResumeReason.ARRIVED)

    def _firsts(self, slot: int) -> list[LongPoll]:
        """Return the pulls of a queue that a message resumes, regardless of their filter."""
        firsts = (sharing.first() for sharing in self._by_slot.get(slot, ()))
        return [poll for poll in firsts if poll is not None]

    def expire(self, steady_ms: int) -> None:
        """Resume the pulls whose deadline has passed."""
        for bucket in [b for b in self._by_bucket if b * BUCKET_MS <= steady_ms]:
            self._resume_all(self._by_bucket[bucket], ResumeReason.TIMED_OUT)

    async def run(self) -> None:
        """Expire pulls until stopped."""
        while not self._stopping:
            self._changed.clear()
            await self._clock.wait(self._changed, until_ms=self._next_expiry_ms())
            self.expire(self._clock.steady_ms())

    def _next_expiry_ms(self) -> int | None:
        """Return the wall clock time in ms at which the next pull expires; None without pulls."""
        first = min(self._by_bucket, default=None)
        if first is None:
            return None
        left_ms = first * BUCKET_MS - self._clock.steady_ms()
        return self._clock.now_ms() + max(left_ms, 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the deadline task; on exit, resume every long poll."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="long polls")
            try:
                yield self
            finally:
                self.stop()

    def stop(self) -> None:
        """Resume and remove every long poll."""
        self._stopping = True
        self._changed.set()
        for polls in list(self._by_bucket.values()):
            self._resume_all(polls, ResumeReason.STOPPING)

    def _resume_all(self, polls: Iterable[LongPoll], reason: ResumeReason) -> None:
        for poll in list(polls):
            self._resume(poll, reason)

    def _resume(self, poll: LongPoll, reason: ResumeReason) -> None:
        if reason is ResumeReason.ARRIVED and poll.awaits is not None:
            poll.awaits.discard(poll)
            poll.awaits = None
        self.release(poll)
        if poll.future is not None:
            if not poll.future.done():
                poll.future.set_result(reason)
            return
        poll.reason = reason
        self._resumed.append(poll)
        if not self._is_resuming:
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume_holders)

    def _resume_holders(self) -> None:
        """Resume the first holders; the others have the next turn of the event loop."""
        resumed = self._resumed
        try:
            for _ in range(min(len(resumed), RESUMED_PER_TURN)):
                poll = resumed.popleft()
                assert poll.holder is not None
                poll.holder.resume(poll.reason)
        finally:
            self._is_resuming = bool(resumed)
            if resumed:
                asyncio.get_running_loop().call_soon(self._resume_holders)

    def _peer_polls(self, peer: Peer | None) -> set[LongPoll]:
        if peer is None:
            return set()
        peer_polls = self._by_peer.get(peer)
        if peer_polls is None:
            peer_polls = self._by_peer[peer] = set()
            peer.on_close(self._on_close)
        return peer_polls

    def _on_close(self, peer: Peer) -> None:
        self._resume_all(self._by_peer.pop(peer, ()), ResumeReason.DROPPED)


def memory_bytes(subscription: Subscription, slot_count: int = 1) -> int:
    """Return the estimated memory of a long poll in bytes; expressions are also stored as tags."""
    char_bytes = 2 if subscription.filter is None else BYTES_PER_CHAR
    texts = char_bytes * len(subscription.expression) + 96 * len(subscription.tags)
    return LONG_POLL_BYTES + texts + SLOT_BYTES * (slot_count - 1)


def _any_matches(subscription: Subscription, batch: PutBatch, slot: int) -> bool:
    """Return whether the filter matches a message that a batch appended to a queue."""
    rows = batch.filled
    stored = rows[(rows["queue_slot"] == slot) & (rows["status"] == 0)]
    return bool(subscription.mask(stored["tags_code"]).any())
