"""State of all brokers of a cluster: one value, or the reason why it is unknown, for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import ClientError, Unsupported
from duemq.http.endpoints import JsonValue
from duemq.http.sessions import AccountSession
from duemq_common.errors import RequestError

TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Value of one broker.

    Attributes:
        value: What the broker responded; None: it is unknown.
        failure: Reason why it is unknown.
        has_feature: Whether the broker knows the request; Apache's do not know views.
    """

    member: BrokerMember
    value: JsonValue = None
    failure: str = ""
    has_feature: bool = True


async def of_members(
    members: Sequence[BrokerMember], ask: Callable[[BrokerMember], Awaitable[JsonValue]]
) -> list[BrokerState]:
    """Return what each broker responds; a broker that fails hides no other."""

    async def state(member: BrokerMember) -> BrokerState:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return BrokerState(member, await ask(member))
        except Unsupported as error:
            return BrokerState(member, None, str(error), has_feature=False)
        except TimeoutError:
            return BrokerState(member, None, f"no response within {TIMEOUT_S:.0f} s")
        except (ClientError, RequestError) as error:
            return BrokerState(member, None, str(error))

    return list(await asyncio.gather(*map(state, members)))


async def views(
    session: AccountSession, members: Sequence[BrokerMember], name: str, **fields: object
) -> list[BrokerState]:
    """Return a view of each broker."""
    return await of_members(members, lambda one: session.admin.view(one.address, name, **fields))


async def masters(session: AccountSession) -> list[BrokerMember]:
    """Return the masters."""
    return list(await session.admin.masters())


def total(states: Sequence[BrokerState], *path: str) -> int | None:
    """Return the sum of a number in the values; None if it is unknown for any broker."""
    numbers = [number_in(state.value, *path) for state in states]
    return None if None in numbers or not numbers else sum(n for n in numbers if n is not None)


def number_in(value: JsonValue, *path: str) -> JsonValue:
    """Return a number in nested plain data; None if it is unknown."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value if isinstance(value, int | float) else None
