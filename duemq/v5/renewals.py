"""Invisible times that the broker renews while a push consumer works on its messages.

    receive (auto renew) --note--> table --shortly before the time is over: change--> new handle
    acknowledge, change, forward <--take the newest handle-- table

A client is given one handle and names it for hours; the table has the one that is valid. When a
client is forgotten, its messages are visible again after a second.

Source: ReceiptHandleProcessor, DefaultReceiptHandleManager of Apache's proxy
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from duemq.net.notices import Notices
from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle
from duemq.v5.status import V5Error
from message_store.clock import Clock

log = logging.getLogger(__name__)
RENEWED_MS: Final = 60_000  # defaultInvisibleTimeMills
AHEAD_MS: Final = 10_000  # renewAheadTimeMillis
LOOK_MS: Final = 5_000  # renewSchedulePeriodMillis
RENEWED_FOR_MS_MAX: Final = 3 * 3_600_000  # renewMaxTimeMillis
CLEARED_MS: Final = 1_000  # invisibleTimeMillisWhenClear
HANDLES_MAX: Final = 200_000  # of all clients; more are not renewed
RENEWALS_AT_ONCE: Final = 256

Key = tuple[str, str, str]
"""Group, topic, handle as the client has it."""
Change = Callable[[CallContext, V5Client, str, str, Handle, int], Awaitable[Handle]]


@dataclass(slots=True)
class Renewal:
    """A message whose invisible time is renewed.

    Attributes:
        handle: The newest.
        since_ms: When it was received.
        context: Of the call that received it.
        in_flight: Done when a renewal has ended; None: there is none.
    """

    handle: Handle
    since_ms: int
    client: V5Client
    context: CallContext
    in_flight: asyncio.Event | None = None


@dataclass(slots=True)
class Renewals:
    """All messages whose invisible times are renewed.

    Args:
        change: Changes an invisible time; returns the new handle.
    """

    clock: Clock
    change: Change
    table: dict[Key, Renewal] = field(default_factory=dict)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: Notices = field(default_factory=lambda: Notices(log))

    def note(
        self, group: str, topic: str, handle: Handle, client: V5Client, context: CallContext
    ) -> None:
        """Renew the time of a message from now on."""
        if len(self.table) < HANDLES_MAX:
            renewal = Renewal(handle, self.clock.now_ms(), client, context)
            self.table[group, topic, handle.text] = renewal

    async def take(self, group: str, topic: str, handle: Handle) -> Handle:
        """Return the newest handle of a message, whose time is no longer renewed."""
        found = self.table.pop((group, topic, handle.text), None)
        if found is None:
            return handle
        if found.in_flight is not None:  # the older handle would not end the new time
            await found.in_flight.wait()
        return found.handle

    async def renew(self) -> None:
        """Renew the times that are nearly over; have those of forgotten clients end."""
        now_ms = self.clock.now_ms()
        due = [
            (key, each)
            for key, each in self.table.items()
            if each.client.closed or each.handle.receipt.visible_ms - now_ms <= AHEAD_MS
        ]
        for first in range(0, len(due), RENEWALS_AT_ONCE):
            part = due[first : first + RENEWALS_AT_ONCE]
            await asyncio.gather(*(self._renew_one(key, each) for key, each in part))

    async def _renew_one(self, key: Key, renewal: Renewal) -> None:
        group, topic, _ = key
        is_over = self.clock.now_ms() - renewal.since_ms > RENEWED_FOR_MS_MAX
        if renewal.client.closed or is_over:
            self.table.pop(key, None)
        if is_over:
            return
        invisible_ms = CLEARED_MS if renewal.client.closed else RENEWED_MS
        renewal.in_flight = in_flight = asyncio.Event()
        try:
            context, client = renewal.context, renewal.client
            handle = renewal.handle
            renewed = await self.change(context, client, group, topic, handle, invisible_ms)
            renewal.handle = renewed
        except V5Error as error:
            self.table.pop(key, None)
            self._failed("%r: the time of a message was not renewed: %s", renewal.client, error)
        finally:
            in_flight.set()
            renewal.in_flight = None

    async def run(self) -> None:
        """Renew until stopped."""
        while not self._ended.is_set():
            await self.clock.wait(self._ended, until_ms=self.clock.now_ms() + LOOK_MS)
            if not self._ended.is_set():
                await self.renew()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Renew while the block is open."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="renewal of invisible times")
            try:
                yield
            finally:
                self._ended.set()
