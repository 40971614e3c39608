"""Automatic renewal of invisible times while a push consumer processes messages.

    receive (auto renew) --add--> table --shortly before the expiry: change--> new handle
    receive, not sent ---release--> table --at the next check: change--> visible within a second
    acknowledge, change, forward <--remove: the newest handle-- table

The client keeps the handle that it received; the table maps it to the newest handle, which is the
valid one. After a client is removed, its messages become visible within a second, and so do
messages that could not be sent to their client. A refused change is repeated at the next checks,
until the invisible time has expired; not if the handle is invalid.

Source: ReceiptHandleProcessor, DefaultReceiptHandleManager of Apache's proxy
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from duemq.net.notices import Notices
from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle
from duemq.v5.status import HandleEnded, V5Error
from duemq_common.clock import Clock

log = logging.getLogger(__name__)
RENEWED_INVISIBLE_MS: Final = 60_000  # defaultInvisibleTimeMills
RENEW_AHEAD_MS: Final = 10_000  # renewAheadTimeMillis
CHECK_INTERVAL_MS: Final = 5_000  # renewSchedulePeriodMillis
RENEWAL_MS_MAX: Final = 3 * 3_600_000  # renewMaxTimeMillis
CLOSED_CLIENT_INVISIBLE_MS: Final = 1_000  # invisibleTimeMillisWhenClear
HANDLES_MAX: Final = 200_000  # over all clients; further messages are not renewed
CONCURRENT_RENEWALS_MAX: Final = 256

Key = tuple[str, str, str]
"""Group, topic, and the handle that the client received."""
Change = Callable[[CallContext, V5Client, str, str, Handle, int], Awaitable[Handle]]


@dataclass(slots=True)
class Renewal:
    """Renewal of one message.

    Attributes:
        handle: Newest handle.
        since_ms: Time at which the message was received, in ms since the epoch.
        context: Context of the call that received the message.
        in_flight: Set when the request in flight has ended; None: no request is in flight.
        is_released: Whether the message was not sent to its client.
    """

    handle: Handle
    since_ms: int
    client: V5Client
    context: CallContext
    in_flight: asyncio.Event | None = None
    is_released: bool = False

    @property
    def is_ended(self) -> bool:
        """Whether the client does not process the message."""
        return self.is_released or self.client.closed


@dataclass(slots=True)
class Renewals:
    """Table of the messages whose invisible time is renewed automatically.

    Args:
        change: Changes the invisible time of a message and returns the new handle.
    """

    clock: Clock
    change: Change
    table: dict[Key, Renewal] = field(default_factory=dict)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: Notices = field(default_factory=lambda: Notices(log))

    def add(
        self, group: str, topic: str, handle: Handle, client: V5Client, context: CallContext
    ) -> None:
        """Start renewing the invisible time of a message."""
        if len(self.table) < HANDLES_MAX:
            renewal = Renewal(handle, self.clock.now_ms(), client, context)
            self.table[group, topic, handle.text] = renewal

    def release(
        self, group: str, topic: str, handle: Handle, client: V5Client, context: CallContext
    ) -> None:
        """Let a message be visible soon that was popped, and not sent to its client."""
        if (group, topic, handle.text) not in self.table:
            self.add(group, topic, handle, client, context)
        if (renewal := self.table.get((group, topic, handle.text))) is not None:
            renewal.is_released = True

    async def remove(self, group: str, topic: str, handle: Handle) -> Handle:
        """Stop renewing the invisible time of a message; return its newest handle."""
        renewal = self.table.pop((group, topic, handle.text), None)
        if renewal is None:
            return handle
        if renewal.in_flight is not None:  # the renewal in flight invalidates the current handle
            await renewal.in_flight.wait()
        return renewal.handle

    def newest(self, group: str, topic: str, handle: Handle) -> Handle:
        """Return the newest handle of a message without a renewal in flight."""
        renewal = self.table.get((group, topic, handle.text))
        return handle if renewal is None else renewal.handle

    def remove_at_rest(self, group: str, topic: str, handle: Handle) -> None:
        """Stop renewing the invisible time of a message without a renewal in flight."""
        self.table.pop((group, topic, handle.text), None)

    def is_in_flight(self, group: str, topic: str, texts: Iterable[str]) -> bool:
        """Return whether a renewal of one of these handles is in flight."""
        renewals = (self.table.get((group, topic, text)) for text in texts) if self.table else ()
        return any(each is not None and each.in_flight is not None for each in renewals)

    async def renew(self) -> None:
        """Renew invisible times that expire soon; shorten those of released messages."""
        now_ms = self.clock.now_ms()
        due = [
            (key, each)
            for key, each in self.table.items()
            if each.is_ended or each.handle.receipt.visible_ms - now_ms <= RENEW_AHEAD_MS
        ]
        for first in range(0, len(due), CONCURRENT_RENEWALS_MAX):
            part = due[first : first + CONCURRENT_RENEWALS_MAX]
            await asyncio.gather(*(self._renew_one(key, each) for key, each in part))

    async def _renew_one(self, key: Key, renewal: Renewal) -> None:
        group, topic, _ = key
        if self.table.get(key) is not renewal:
            return  # it was acknowledged meanwhile: a change would make it visible again
        if self.clock.now_ms() - renewal.since_ms > RENEWAL_MS_MAX:
            self.table.pop(key, None)
            return
        context, client, handle = renewal.context, renewal.client, renewal.handle
        is_ended = renewal.is_ended
        invisible_ms = CLOSED_CLIENT_INVISIBLE_MS if is_ended else RENEWED_INVISIBLE_MS
        renewal.in_flight = in_flight = asyncio.Event()
        try:
            renewed = await self.change(context, client, group, topic, handle, invisible_ms)
            renewal.handle = renewed
            if is_ended:
                self.table.pop(key, None)
        except V5Error as error:
            has_expired = handle.receipt.visible_ms <= self.clock.now_ms()
            if has_expired or isinstance(error, HandleEnded):
                self.table.pop(key, None)
            self._failed(
                "%r: the invisible time of a message was not renewed: %s", renewal.client, error
            )
        finally:
            in_flight.set()
            renewal.in_flight = None

    async def run(self) -> None:
        """Renew invisible times until stopped."""
        while not self._stopped.is_set():
            await self.clock.wait(self._stopped, until_ms=self.clock.now_ms() + CHECK_INTERVAL_MS)
            if not self._stopped.is_set():
                await self.renew()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the renewal task while the block is active."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="renewal of invisible times")
            try:
                yield
            finally:
                self._stopped.set()
