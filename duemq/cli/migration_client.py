"""Client for the migration requests of one broker."""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from duemq.cli.client import brokers_of
from duemq.cli.options import Target
from duemq.cli.output import notice
from duemq.cli.retrying import Retrying
from duemq.client.connections import host_and_port
from duemq.client.routes import bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError, UsageError
from duemq_migration.requests import MASTER_FIELD, MIGRATE

CALL_TIMEOUT_S: Final = 600.0
POLL_INTERVAL_S: Final = 0.5
FINAL: Final = ("done", "rolled_back", "planned")
Status = dict[str, Any]
T = TypeVar("T")


class IsReplica(RequestError):
    """Refusal of a replica; `master` is the `host:port` of its master, empty if it is unknown."""

    def __init__(self, code: int, remark: str, master: str) -> None:
        super().__init__(code, remark)
        self.master = master


class MigrationClient:
    """Client of one broker's migrations; an async context manager.

    Args:
        target: The broker, or name servers with a single broker.

    Attributes:
        address: `host:port` of the broker; of the next master after a failover during
            `wait_until_settled`.
    """

    def __init__(self, target: Target) -> None:
        self._cluster = target.cluster()
        self._name = self.address = ""

    async def __aenter__(self) -> MigrationClient:
        await self._cluster.__aenter__()
        brokers = await brokers_of(self._cluster)
        if len(brokers) > 1:
            names = ", ".join(f"{name} {address}" for name, address in brokers)
            raise UsageError(f"there are several brokers: select one with --broker ({names})")
        self._name, self.address = brokers[0]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._cluster.__aexit__(*exc)

    async def command(self, action: str, **more: object) -> dict[str, Any]:
        """Return the result of an action.

        Raises:
            IsReplica: The broker is a replica.
            RequestError: The broker refused it, or does not support migrations.
        """
        body = json.dumps({"action": action, **more}).encode()
        response = await self._cluster.request(
            self.address, MIGRATE, body=body, timeout_s=CALL_TIMEOUT_S
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestError(
                response.code, f"{self.address} is not a DueMQ broker with migrations"
            )
        if (master := (response.fields or {}).get(MASTER_FIELD)) is not None:
            raise IsReplica(response.code, response.remark or "", master)
        if response.code != ResponseCode.SUCCESS:
            raise RequestError(response.code, response.remark or "")
        result: dict[str, object] = json.loads(bytes_of(response))
        return result

    async def status(self) -> Status:
        """Return the state of every level."""
        return await self.command("status")

    async def configure(self, changes: dict[str, str]) -> None:
        """Change the broker's configuration."""
        body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
        await self._cluster.call(self.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def wait_until_settled(
        self, levels: list[int], shown: Callable[[Status], None]
    ) -> Status:
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

    async def _status_of_master(self) -> Status:
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
            return dict(await self._cluster.brokers()).get(self._name, "")
        except (ConnectionError, UsageError):
            return ""

    def _follow(self, master: str) -> None:
        """Send the next requests to this address, unless it is empty or malformed."""
        try:
            host_and_port(master)
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


def run(target: Target, work: Callable[[MigrationClient], Awaitable[T]]) -> T:
    """Call `work` with a client and return its result."""

    async def main() -> T:
        async with MigrationClient(target) as client:
            return await work(client)

    return asyncio.run(main())
