"""Audit log of operators: requests that changed something, and refused ones."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client import Refused
from duemq.client.admin.cluster import BrokerMember
from duemq.http.broker_states import UnknownPart, page_of_brokers, page_values
from duemq.http.endpoints import Call, Endpoint, JsonObject
from duemq.http.sessions import AccountSession
from duemq.net.view_names import OPERATORS_VIEW
from duemq_common.codes import ResponseCode

NO_ACCOUNTS: Final = "the broker has no accounts, and so no audit log"
ENTRIES_MAX: Final = 100  # of a page of the audit log


class OperatorsQuery(msgspec.Struct, kw_only=True):
    """Page of the audit log.

    Attributes:
        cursor: Cursor of the page before; empty: the first page.
    """

    limit: Annotated[int, Meta(ge=1, le=ENTRIES_MAX)] = ENTRIES_MAX
    cursor: Annotated[str, Meta(pattern=r"^([0-9]{1,4}\.[0-9]{0,18})?$")] = ""


class PageOfOperators(msgspec.Struct):
    """Requests that changed something, and refused requests, broker by broker, newest first.

    Attributes:
        entries: Entries that the brokers have in memory, as they describe them.
        cursor: Cursor of the next page; null at the end. A page may be empty before the end.
        unknown: Brokers whose entries are missing.
    """

    entries: list[JsonObject]
    cursor: str | None
    unknown: list[UnknownPart]


async def list_operators(call: Call) -> PageOfOperators:
    """Return a page of the audit log."""
    query: OperatorsQuery = call.query or OperatorsQuery()
    session = call.session

    async def part(member: BrokerMember, before: str) -> tuple[list[JsonObject], str | None]:
        entries, following = await entries_of(session, member, before, query.limit)
        return [{"broker": member.name, **entry} for entry in entries], following

    page = await page_of_brokers(session, query.cursor, part)
    entries, unknown = page_values(page, query.cursor)
    return PageOfOperators(entries, page.cursor or None, unknown)


async def entries_of(
    session: AccountSession, member: BrokerMember, before: str, count: int
) -> tuple[list[JsonObject], str | None]:
    """Return entries of the audit log of a broker, and the cursor of the next ones.

    Raises:
        Refused: The broker has no accounts, or the account may not read the log.
    """
    try:
        view = await session.admin.view(member.address, OPERATORS_VIEW, before=before, count=count)
    except Refused as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:  # there is no such view
            raise Refused(error.code, NO_ACCOUNTS, member.address) from error
        raise
    return view["entries"], None if view["before"] is None else str(view["before"])


ENDPOINTS: Final = (
    Endpoint(
        path="/operators",
        handler=list_operators,
        summary="List what operators changed, and refused requests, newest first.",
        tag="operations",
        query=OperatorsQuery,
        result=PageOfOperators,
    ),
)
