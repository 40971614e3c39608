"""Clients of brokers, one for each account, and the accounts of requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from anyio import create_task_group

from duemq.auth.signature import Credentials
from duemq.client import Admin, Client, PendingDecisions, Producer
from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import NoBroker, Refused
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response

SESSIONS_MAX: Final = 64  # accounts with open connections
PRODUCER_GROUP: Final = "duemq_http"
CHECK_S: Final = 5.0
EMPTY_CONFIG: Final = b"{}"
FORGOTTEN_S: Final = 24 * 3600.0  # after this time, a broker that is not registered is not listed


@dataclass(frozen=True, slots=True)
class FormerMember(BrokerMember):
    """Member that is no longer registered at the name server."""

    @staticmethod
    def of(member: BrokerMember) -> FormerMember:
        """Return a member as a former one."""
        return FormerMember(member.cluster, member.broker_name, member.broker_id, member.address)


class AccountSession:
    """Clients of one account, with shared connections; a context manager for a request.

    Attributes:
        users: Number of requests in progress.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.producer = Producer(client=client, group=PRODUCER_GROUP)
        self.keyed_producer = Producer(client=client, group=PRODUCER_GROUP, retries=0)
        self.admin = Admin(client=client)
        self.decisions = PendingDecisions(client=client)
        self.users = 0
        self._seen: dict[tuple[str, int | None], tuple[BrokerMember, float]] = {}

    def __enter__(self) -> Self:
        self.users += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self.users -= 1

    async def masters(self) -> list[BrokerMember]:
        """Return the masters; see `members`.

        Raises:
            NoBroker: There is none.
        """
        masters = [member for member in await self.members() if member.is_master]
        if not masters:
            raise NoBroker("the name server has no registered broker")
        return masters

    async def check_account(self) -> None:
        """Send each broker a request that every account may send.

        Raises:
            Refused: A broker does not accept the signature, and no other one accepts it.
            NoBroker: There is none.
        """
        code = RequestCode.CHECK_CLIENT_CONFIG
        calls = [
            self.client.call(one.address, code, body=EMPTY_CONFIG, timeout_s=CHECK_S)
            for one in await self.masters()
            if not isinstance(one, FormerMember)
        ]
        responses = await asyncio.gather(*calls, return_exceptions=True)
        answers = [one for one in responses if isinstance(one, Response)]
        refusals = [one for one in answers if one.code == ResponseCode.NO_PERMISSION]
        if refusals and len(refusals) == len(answers):
            raise Refused(ResponseCode.NO_PERMISSION, refusals[0].remark or "")

    async def absent_masters(self) -> list[BrokerMember]:
        """Return the masters that were registered within the last day, and are not now."""
        members = await self.members()
        return [one for one in members if one.is_master and isinstance(one, FormerMember)]

    async def members(self) -> list[BrokerMember]:
        """Return masters and replicas, also those that were registered within the last day.

        A broker that stops or is killed disappears from the name server; a view of the cluster
        must not look complete without it.
        """
        members = {(one.broker_name, one.broker_id): one for one in await self.admin.members()}
        now_s = asyncio.get_running_loop().time()
        self._seen |= {key: (member, now_s) for key, member in members.items()}
        self._seen = {
            key: (member, seen_s)
            for key, (member, seen_s) in self._seen.items()
            if now_s - seen_s < FORGOTTEN_S
        }
        listed = [members.get(key) or FormerMember.of(one) for key, (one, _) in self._seen.items()]
        return sorted(listed, key=lambda one: (one.broker_name, one.broker_id or 0))


class Sessions:
    """Sessions by account; an async context manager.

    Args:
        connect: Returns a new client of an account.
    Attributes:
        stopping: Set when the server stops: responses without an end must end.
    """

    def __init__(self, connect: Callable[[Credentials | None], Client]) -> None:
        self._connect = connect
        self.stopping = asyncio.Event()
        self._sessions: OrderedDict[Credentials | None, AccountSession] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # The first task group imports its event loop's part: not while deliveries wait for it.
        async with create_task_group():
            pass
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for session in self._sessions.values():
            await session.client.close()
        await asyncio.gather(*self._closing)

    def session(self, credentials: Credentials | None) -> AccountSession:
        """Return the session of an account; the least recently used one is closed for a new one."""
        session = self._sessions.get(credentials)
        if session is None:
            session = self._sessions[credentials] = AccountSession(self._connect(credentials))
            if len(self._sessions) > SESSIONS_MAX:
                self._close_unused()
        self._sessions.move_to_end(credentials)
        return session

    def _close_unused(self) -> None:
        for key, session in self._sessions.items():
            if not session.users:
                del self._sessions[key]
                task = asyncio.create_task(session.client.close(), name="close session")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
                return
