"""State of all brokers of a cluster: one value, or the reason why it is unknown, for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.client.errors import ClientError, Refused, Unreachable, Unsupported
from duemq.http.endpoints import NO_CURSOR, Call, JsonObject, JsonValue, invalid
from duemq.http.problems import Problem
from duemq.http.sessions import AccountSession, FormerMember
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError

TIMEOUT_S: Final = 5.0
SKIPPED_MAX: Final = 3  # brokers without a response that one page of a list skips
EMPTY_MAX: Final = 32  # brokers without entries that one page of a list skips
NOT_REGISTERED: Final = "it is no longer registered at the name server"
OTHER_FORM: Final = "its response has another form: it is of another version"

Ask = Callable[[BrokerMember], Awaitable[JsonValue]]
"""Returns the value of one broker, never None."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Value of one broker.

    Attributes:
        value: What the broker responded; None: it is unknown.
        error: Reason why it is unknown.
    """

    member: BrokerMember
    value: JsonValue = None
    error: Exception | None = None

    @property
    def failure(self) -> str:
        """Text of the reason; empty: the value is known."""
        return "" if self.error is None else str(self.error)


class UnknownPart(msgspec.Struct):
    """Broker whose part of a result is missing.

    Attributes:
        reason: Why its part is not known.
    """

    broker: str
    reason: str


async def of_members(members: Sequence[BrokerMember], ask: Ask) -> list[BrokerState]:
    """Return what each broker responds; a broker that fails hides no other."""

    async def state(member: BrokerMember) -> BrokerState:
        error: Exception = Unreachable(NOT_REGISTERED)
        if isinstance(member, FormerMember):  # a connection to it may take seconds to fail
            return BrokerState(member, None, error)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return BrokerState(member, await ask(member))
        except TimeoutError:
            error = Unreachable(f"no response within {TIMEOUT_S:.0f} s")
        except (ClientError, RequestError) as failure:
            error = failure
        except (LookupError, TypeError, ValueError, AttributeError):  # of the code that reads it
            error = Unsupported(OTHER_FORM)
        return BrokerState(member, None, error)

    return list(await asyncio.gather(*map(state, members)))


async def of_masters(session: AccountSession, ask: Ask) -> list[BrokerState]:
    """Return what each master responds.

    Raises:
        NoBroker: There is none.
    """
    return await of_members(await session.masters(), ask)


async def value_of(member: BrokerMember, ask: Ask) -> JsonValue:
    """Return what one broker responds.

    Raises:
        ClientError: It is unknown.
    """
    [value] = values_of(await of_members([member], ask))
    return value


def values_of(states: Sequence[BrokerState]) -> list[JsonValue]:
    """Return the values that are known.

    Raises:
        ClientError: The brokers have no value; the error of the first one.
    """
    values = [state.value for state in states if state.error is None]
    if not values:
        for state in states:
            assert state.error is not None
            raise state.error
    return values


def unknown_of(states: Iterable[BrokerState]) -> list[UnknownPart]:
    """Return the brokers whose value is unknown, each once."""
    failed = {state.member.name: state.failure for state in states if state.error is not None}
    return [UnknownPart(name, reason) for name, reason in failed.items()]


def page_values(page: BrokersPage, cursor: str) -> tuple[list[JsonValue], list[UnknownPart]]:
    """Return the entries of a page of a list, and the brokers whose entries are missing.

    Args:
        cursor: Cursor of the page.
    Raises:
        ClientError: The page is the whole list, and no broker has responded.
    """
    states = [*page.unknown, *([] if page.state in page.unknown else [page.state])]
    if not cursor and not page.cursor:
        values_of(states)
    return page.state.value or [], unknown_of(states)


def check_known(unknown: Sequence[UnknownPart], name: str) -> None:
    """Check that a name that no broker has is not at one whose part is unknown.

    Raises:
        Problem: It may be.
    """
    if unknown:
        reasons = "; ".join(f"{part.broker}: {part.reason}" for part in unknown)
        title = "It is not known whether the name exists"
        raise Problem(503, "unknown", title, f"{name}: a broker did not report its part: {reasons}")


async def unasked(session: AccountSession) -> list[UnknownPart]:
    """Return the brokers that get no request since they are no longer registered."""
    return [UnknownPart(one.name, NOT_REGISTERED) for one in await session.absent_masters()]


async def views(
    session: AccountSession,
    members: Sequence[BrokerMember],
    name: str,
    *,
    form: object = JsonObject,
) -> list[BrokerState]:
    """Return a view of each broker.

    Args:
        form: Type of the view; a view of another form is unknown.
    """

    async def view(member: BrokerMember) -> JsonValue:
        value = await session.admin.view(member.address, name)
        msgspec.convert(value, form)
        return value

    return await of_members(members, view)


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
        ask: Returns a page of one broker, and the broker's cursor of its next page, or None. A
            broker whose last page is empty is skipped.
    Raises:
        Problem: The cursor names no broker.
        NoBroker: There is none.
    """
    members = await session.masters()
    number, _, inner = cursor.partition(".")
    if cursor and not (number.isascii() and number.isdigit() and int(number) < len(members)):
        raise invalid(NO_CURSOR)
    unknown: list[BrokerState] = []
    first, empty = int(number or 0), list[BrokerState]()
    for index in range(first, len(members)):

        async def part(member: BrokerMember, own_cursor: str = inner) -> JsonValue:
            return await ask(member, own_cursor)

        [state] = await of_members([members[index]], part)
        inner, following = "", f"{index + 1}." if index + 1 < len(members) else ""
        if state.error is None:
            value, rest = state.value
            if following and rest is None and not value and index - first < EMPTY_MAX:
                empty.append(BrokerState(state.member, value))
                continue
            following = following if rest is None else f"{index}.{rest}"
            return BrokersPage(BrokerState(state.member, value), following, unknown)
        unknown.append(state)
        if len(unknown) == SKIPPED_MAX:
            break
    return BrokersPage(empty[-1] if empty else state, following, unknown)


class BrokerQuery(msgspec.Struct):
    """Name or address of the broker; empty: the only one."""

    broker: Annotated[str, Meta(max_length=255)] = ""


@contextmanager
def state_problem(title: str) -> Iterator[None]:
    """Raise a problem (409) if the broker refuses the request because of its state."""
    try:
        yield
    except Refused as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        raise Problem(409, "state", title, error.remark, code=error.code) from error


async def master_address(call: Call, broker: str) -> str:
    """Return the address of the master of a broker, or of the only one."""
    masters = await call.session.masters()
    addresses = [one.address for one in masters if broker in ("", one.name, one.address)]
    if not addresses:
        raise Problem(404, "no-broker", "There is no such broker", broker)
    if len(addresses) > 1:
        names = ", ".join(one.name for one in masters)
        raise invalid(f"there are several brokers: give broker ({names})")
    return addresses[0]
