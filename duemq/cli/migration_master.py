"""Broker whose migrations a command changes; a wait follows the master of its group."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeVar

from duemq.cli.options import Target
from duemq.cli.output import notice
from duemq.cli.retrying import Retrying
from duemq.client.admin.migrations import IsReplica, MigrationResult, MigrationStatus
from duemq.client.errors import NoBroker, Refused
from duemq_common.errors import UsageError
from duemq_common.host_port import split_address

POLL_INTERVAL_S: Final = 0.5
FINAL: Final = ("done", "rolled_back", "planned")
T = TypeVar("T")


class MigrationMaster:
    """Master of one broker group; an async context manager.

    Args:
        target: The broker, or name servers with a single broker.

    Attributes:
        address: `host:port` of the broker; of the next master after a failover during
            `wait_until_settled`.
    """

    def __init__(self, target: Target) -> None:
        self.admin = target.admin()
        self._name = self.address = ""

    async def __aenter__(self) -> Self:
        await self.admin.__aenter__()
        masters = await self.admin.masters()
        if len(masters) > 1:
            names = ", ".join(f"{each.name} {each.address}" for each in masters)
            raise UsageError(f"there are several brokers: select one with --broker ({names})")
        self._name, self.address = masters[0].name, masters[0].address
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.admin.close()

    async def migrate(self, action: str, **more: Any) -> MigrationResult:
        """Return the result of an action; see `MigrationsAdmin.migrate`."""
        return await self.admin.migrate(self.address, action, operator=operator(), **more)

    async def status(self) -> MigrationStatus:
        """Return the state of every level."""
        return await self.admin.migration_status(self.address)

    async def wait_until_settled(
        self, levels: list[int], shown: Callable[[MigrationStatus], None]
    ) -> MigrationStatus:
        """Wait until these levels are done, rolled back or paused; return the status.

        The broker may restart meanwhile, or another member of its group may become the master.
        """
        retrying = Retrying("the master")
        while True:
            status = await retrying.attempt(self._status_of_master)
            if status is None:
                continue
            shown(status)
            selected = [item for item in status["levels"] if item["level"] in levels]
            if all(item["state"] in FINAL or item["paused"] for item in selected):
                return status
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _status_of_master(self) -> MigrationStatus:
        """Return the status of the master; after a failure, the next call uses the next master.

        Raises:
            ConnectionError: The broker does not respond, or is no longer the master.
        """
        try:
            return await self.status()
        except IsReplica as refusal:
            reason = f"{self.address} is not the master any more"
            self._follow(refusal.master)
            raise ConnectionError(reason) from refusal
        except ConnectionError:
            self._follow(await self._registered_master())
            raise

    async def _registered_master(self) -> str:
        """Return the master's address at the name server, or the broker that was selected first.

        The result is empty if no name server responds, or if the group has no master now.
        """
        try:
            masters = await self.admin.masters()
        except (ConnectionError, NoBroker, Refused):
            return ""
        return next((each.address for each in masters if each.name == self._name), "")

    def _follow(self, master: str) -> None:
        """Send the next requests to this address, unless it is empty or malformed."""
        try:
            split_address(master)
        except ValueError:
            return
        if master != self.address:
            self.address = master
            notice(f"the master is {master} now")


def operator() -> str:
    """Return the user and the machine that send the request."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def run(target: Target, work: Callable[[MigrationMaster], Awaitable[T]]) -> T:
    """Call `work` with the master and return its result."""

    async def main() -> T:
        async with MigrationMaster(target) as master:
            return await work(master)

    return asyncio.run(main())
