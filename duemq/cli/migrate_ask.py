"""Client for migration requests of one broker, with progress until they complete."""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from duemq.cli.client import brokers_of, bytes_of
from duemq.cli.options import Target
from duemq.cli.retrying import Retrying
from duemq.net.codes import RequestCode, ResponseCode
from message_store.errors import RequestError, UsageError
from migration.requests import MIGRATE

ASK_TIMEOUT_S: Final = 600.0
LOOK_EVERY_S: Final = 0.5
FINAL: Final = ("done", "rolled_back", "planned")
Status = dict[str, Any]


class Migrating:
    """A client of one broker's migrations. An async context manager.

    Args:
        target: Name servers with one broker, or the broker itself.
    """

    def __init__(self, target: Target) -> None:
        self._cluster = target.cluster()
        self.address = ""

    async def __aenter__(self) -> Migrating:
        await self._cluster.__aenter__()
        brokers = await brokers_of(self._cluster)
        if len(brokers) > 1:
            names = ", ".join(f"{name} {address}" for name, address in brokers)
            raise UsageError(f"a migration is one broker's: name it with --broker ({names})")
        self.address = brokers[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._cluster.__aexit__(*exc)

    async def command(self, action: str, **more: Any) -> dict[str, Any]:
        """Return the result of an action.

        Raises:
            RequestError: The broker refused it, or does not support migrations.
        """
        body = json.dumps({"action": action, **more}).encode()
        answer = await self._cluster.ask(self.address, MIGRATE, body=body, timeout_s=ASK_TIMEOUT_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestError(
                answer.code, f"{self.address} is not a DueMQ broker that can migrate"
            )
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark or "")
        found: dict[str, Any] = json.loads(bytes_of(answer))
        return found

    async def status(self) -> Status:
        """Return the state of every level."""
        return await self.command("status")

    async def configure(self, changes: dict[str, str]) -> None:
        """Change the broker's configuration."""
        body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
        await self._cluster.call(self.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def until_rest(self, levels: list[int], shown: Callable[[Status], None]) -> Status:
        """Return the status once these levels are done, rolled back or paused; show the progress.

        The broker may restart meanwhile: the migration continues.
        """
        retrying = Retrying(self.address)
        while True:
            status = await retrying.attempt(self.status)
            if status is None:
                continue
            shown(status)
            mine = [item for item in status["levels"] if item["level"] in levels]
            if all(item["state"] in FINAL or item["paused"] for item in mine):
                return status
            await asyncio.sleep(LOOK_EVERY_S)


def operator() -> str:
    """Return the user and the machine that send the request."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def run(target: Target, work: Callable[[Migrating], Awaitable[Any]]) -> Any:
    """Run some work with a client and return what it returns."""

    async def main() -> Any:
        async with Migrating(target) as migrating:
            return await work(migrating)

    return asyncio.run(main())
