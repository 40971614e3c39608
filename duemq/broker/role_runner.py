"""Role runner: runs one broker at a time, in the last assigned role.

    assign(role) --> stop the broker of the old role --> start a broker of the new role
                     (closes connections and store)      (opens the store as at every start)

A change of role is a stop and a start within the process: recovery derives the cursors of levels
and timers from the log, as after a crash. Compiled kernels stay in memory, so the change takes a
few hundred milliseconds. If only the epoch changes, because the same master was elected again, the
broker and its store stay open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from duemq.broker.broker import Broker
from duemq.replication.role import ReplicationRole
from duemq_common.errors import StoreError

log = logging.getLogger(__name__)
RETRY_S: Final = 5
RESIGNED: Final = "another member of the group is the master now: send to it"


class RoleRunner:
    """Runner of brokers on one store directory.

    Args:
        new_broker: Returns a broker in a role, not started.
        role: First role.
        on_serving: Called with each broker when it serves.
        on_closing: Called before a broker is closed, for a change of role or a stop, and before
            another attempt to open the store.
    Attributes:
        new_broker: Factory, replaceable by tests.
        broker: Serving broker; None during a change of role.
    """

    def __init__(
        self,
        new_broker: Callable[[ReplicationRole], Broker],
        role: ReplicationRole,
        on_serving: Callable[[Broker], None] = lambda broker: None,
        on_closing: Callable[[], None] = lambda: None,
    ) -> None:
        self.new_broker = new_broker
        self._on_serving, self._on_closing = on_serving, on_closing
        self._while_closed: Callable[[], None] | None = None
        self._retries = False
        self._assigned = role
        self._changed, self._serving = asyncio.Event(), asyncio.Event()
        self._stops = False
        self.role = role
        self.broker: Broker | None = None

    def assign(self, role: ReplicationRole) -> None:
        """Change to a role; ignored if it is already assigned."""
        if role == self._assigned:
            return
        self._assigned = role
        if self._continues_in(role):
            return
        if self.broker is not None:
            _resign(self.broker)
        self._serving.clear()
        self._changed.set()

    def _continues_in(self, role: ReplicationRole) -> bool:
        """Let the open broker continue in a newer epoch; return whether it does."""
        if self.broker is None or self._changed.is_set() or not role.continues(self.role):
            return False
        try:
            _begin_epoch(self.broker, role)
        except (OSError, StoreError) as error:
            log.warning("epoch %d does not begin on the open store: %s", role.epoch, error)
            return False
        self.role = role
        log.info("this broker remains %s", _described(role))
        return True

    def restart(self, work: Callable[[], None], *, retry: bool = False) -> None:
        """Close the broker, call `work` in a thread, and start a broker in the assigned role.

        Args:
            retry: Whether to try again until the disk works, instead of ending with its error.
        """
        self._while_closed, self._retries = work, retry
        self._serving.clear()
        self._changed.set()

    async def serves(self) -> None:
        """Wait until a broker of the last assigned role serves, or `run` has ended."""
        await self._serving.wait()

    def stop(self) -> None:
        """Stop the broker; `run` then returns."""
        self._stops = True
        self._changed.set()

    async def run(self) -> str:
        """Run brokers until `stop`; return the failure of the last one, empty after a stop.

        Raises:
            DueMQError: A broker cannot start in its role.
        """
        try:
            return await self._run()
        finally:
            self._serving.set()  # also end an interrupted change of role

    async def _run(self) -> str:
        while not self._stops:
            self._changed.clear()
            try:
                broker, ended = await self._run_one()
            except (OSError, StoreError) as error:
                if not self._retries:
                    raise
                log.error("the store is not opened: %s; next attempt in %d s", error, RETRY_S)
                await self._pause()
                self._on_closing()
                continue
            if ended:
                return broker.failure
            del broker  # it is freed while the next one runs
        return ""

    async def _run_one(self) -> tuple[Broker, bool]:
        """Run one broker; return it closed, and whether it stopped by itself.

        Raises:
            DueMQError: It cannot start in its role.
            OSError: The disk failed.
        """
        if self._while_closed is not None:
            await asyncio.to_thread(self._while_closed)
            self._while_closed = None
        self.role = role = self._assigned
        log.info("this broker becomes %s", _described(role))
        broker = self.new_broker(role)
        async with broker:
            self.broker, self._retries = broker, False
            self._on_serving(broker)
            if not self._changed.is_set():
                self._serving.set()
            ended = await self._until_changed(broker)
            self._on_closing()
            self.broker = None
            self._serving.clear()
        return broker, ended

    async def _pause(self) -> None:
        """Wait for `RETRY_S`, or less if the role changes or the runner stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await self._changed.wait()

    async def _until_changed(self, broker: Broker) -> bool:
        """Wait for another role or a stop; return whether the broker stopped."""
        waits = [
            asyncio.create_task(self._changed.wait(), name="change of role"),
            asyncio.create_task(broker.stopped(), name="stop of the broker"),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return broker.stops


def _resign(broker: Broker) -> None:
    """Refuse all messages and end all waits for replicas, as another member is the master."""
    if not broker.settings.replication.is_replica:
        broker.store.read_only = RESIGNED
        broker.store.replicated.give_up()


def _begin_epoch(broker: Broker, role: ReplicationRole) -> None:
    """Let a broker continue in a newer epoch of its role.

    Raises:
        StoreError: The log has a newer epoch.
        OSError: The epoch file cannot be written.
    """
    assert broker.membership is not None
    broker.membership.role = role
    broker.membership.begin(broker.store)
    broker.parts.topics.begin_epoch(role.epoch)
    broker.parts.groups.begin_epoch(role.epoch)
    if broker.parts.ha_server is not None:
        broker.parts.ha_server.in_sync.update()


def _described(role: ReplicationRole) -> str:
    if not role.is_replica:
        return f"the master of epoch {role.epoch}"
    return f"a replica of {role.master_address or 'no master yet'} (epoch {role.epoch})"
