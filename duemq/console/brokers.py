"""State of all brokers of a cluster: one value, or the reason why it is unknown, for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import ClientError, Unsupported
from duemq.console.blocks import Key, Notice
from duemq.http.endpoints import JsonValue, invalid
from duemq.http.sessions import AccountSession
from duemq_common.errors import RequestError

TIMEOUT_S: Final = 5.0
SKIPPED_MAX: Final = 3  # brokers without a response that one page of a list skips
OTHER_FORM: Final = "its response has another form: it is of another version"


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
        except (LookupError, TypeError):
            return BrokerState(member, None, OTHER_FORM)

    return list(await asyncio.gather(*map(state, members)))


async def views(
    session: AccountSession,
    members: Sequence[BrokerMember],
    name: str,
    *,
    needed: Iterable[str] = (),
) -> list[BrokerState]:
    """Return a view of each broker.

    Args:
        needed: Paths of values, as `slots.fullest`; a view without one of them is unknown.
    """

    async def view(member: BrokerMember) -> JsonValue:
        value = await session.admin.view(member.address, name)
        for path in needed:
            check_path(value, path)
        return value

    return await of_members(members, view)


def check_path(value: JsonValue, path: str) -> None:
    """Check that nested plain data has a value.

    Raises:
        LookupError: It has none.
        TypeError: A part of it has no names.
    """
    for name in path.split("."):
        value = value[name]


async def masters(session: AccountSession) -> list[BrokerMember]:
    """Return the masters, also those that have stopped."""
    return [member for member in await session.members() if member.is_master]


def unknown_parts(states: Iterable[BrokerState]) -> list[Notice]:
    """Return a notice for each broker whose part of a page is unknown."""
    return [
        Notice(Key("value.unknown_part"), f"{one.member.name}: {one.failure}", "bad")
        for one in states
        if one.value is None
    ]


@dataclass(frozen=True, slots=True)
class BrokersPage:
    """Page of a list that goes through the brokers, one after the other.

    Attributes:
        state: Response of the broker that has the page.
        cursor: Cursor of the next page; empty: this is the last one.
        unknown: Brokers that the page skips, since they did not respond.
    """

    state: BrokerState
    cursor: str
    unknown: Sequence[BrokerState]


async def page_of_brokers(
    session: AccountSession,
    cursor: str,
    ask: Callable[[BrokerMember, str], Awaitable[tuple[JsonValue, str | None]]],
) -> BrokersPage:
    """Return a page of the list of all masters.

    Args:
        cursor: `INDEX.CURSOR`: number of the broker, and its own cursor; empty: the first page.
        ask: Returns a page of one broker, and the broker's cursor of its next page, or None.
    Raises:
        Problem: The cursor names no broker.
    """
    members = await masters(session)
    number, _, inner = cursor.partition(".")
    if cursor and not (number.isascii() and number.isdigit() and int(number) < len(members)):
        raise invalid("the cursor is not one of this list")
    unknown: list[BrokerState] = []
    for index in range(int(number or 0), len(members)):

        async def part(member: BrokerMember, own_cursor: str = inner) -> JsonValue:
            return await ask(member, own_cursor)

        [state] = await of_members([members[index]], part)
        inner, following = "", f"{index + 1}." if index + 1 < len(members) else ""
        if state.value is not None:
            value, rest = state.value
            following = following if rest is None else f"{index}.{rest}"
            return BrokersPage(BrokerState(state.member, value), following, unknown)
        unknown.append(state)
        if len(unknown) == SKIPPED_MAX:
            break
    return BrokersPage(state, following, unknown)


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
