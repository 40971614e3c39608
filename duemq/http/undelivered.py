"""Messages in quarantine and dead letters: list, and send again, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.dead_letters import DeadLetterCount
from duemq.client.admin.quarantine import Quarantined
from duemq.client.admin.resends import ResendOptions, UndeliveredMessage, UndeliveredSearch
from duemq.http.broker_states import (
    BrokersPage,
    BrokerState,
    UnknownPart,
    of_masters,
    page_of_brokers,
    page_values,
    unknown_of,
    values_of,
)
from duemq.http.endpoints import Call, Endpoint
from duemq.http.pending import TimeMs, UntilMs
from duemq.http.sessions import AccountSession
from duemq.net.decisions import TIME_MS_MAX

PAGE_MAX: Final = 1_000
NAMES_MAX: Final = 1_000
CURSOR: Final = r"^([0-9]{1,4}\.([0-9]{1,9}_[0-9]{0,18})?)?$"

Cursor = Annotated[str, Meta(pattern=CURSOR)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Topic = Annotated[str, Meta(max_length=127)]
Group = Annotated[str, Meta(max_length=255)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class UndeliveredQuery(msgspec.Struct, kw_only=True):
    """Selection of messages in quarantine or of dead letters.

    Attributes:
        topic: Topic of the messages; empty: all.
        group: Consumer group of the messages; empty: all.
        from_ms, until_ms: Store times from `from_ms` to before `until_ms`, in ms since the epoch.
        limit: Maximum number of messages that the page reads; it may select fewer.
        cursor: Cursor of the page before; empty: the first page.
    """

    topic: Topic = ""
    group: Group = ""
    from_ms: TimeMs = 0
    until_ms: UntilMs = TIME_MS_MAX
    limit: Limit = 100
    cursor: Cursor = ""


class SelectedResend(UndeliveredQuery, kw_only=True, forbid_unknown_fields=True):
    """Messages to send again, each once: those of one page of the selection.

    Attributes:
        names: Unique ids, or `BROKER/OFFSET`; none: all messages of the selection.
        to_topic: Topic to send to; empty: that of the message.
        without: Properties that the messages lose.
        dry_run: Whether to report the results without sending.
    """

    names: Annotated[list[Name], Meta(max_length=NAMES_MAX)] = []
    to_topic: Topic = ""
    without: Annotated[list[Name], Meta(max_length=NAMES_MAX)] = []
    dry_run: bool = False


class UndeliveredRow(msgspec.Struct, kw_only=True):
    """Message in quarantine, or dead letter.

    Attributes:
        name: `BROKER/OFFSET`.
        topic: Topic that it could not reach, or could not be consumed from; empty if unknown.
        reason, detail: Why it is in quarantine.
    """

    name: str
    unique_id: str
    offset_message_id: str
    stored_ms: int
    topic: str
    group: str
    reason: str = ""
    detail: str = ""


class PageOfUndelivered(msgspec.Struct):
    """Messages, broker by broker and oldest first; a page may be empty before the end.

    Attributes:
        cursor: Cursor of the next page; null at the end.
        unknown: Brokers whose messages are missing.
    """

    messages: list[UndeliveredRow]
    cursor: str | None
    unknown: list[UnknownPart]


class ResendRow(msgspec.Struct):
    """Result of one message.

    Attributes:
        topic: Topic to send to.
        status: `sent`, `would be sent`, `already sent`, `no topic`, `unreadable`, `refused`, or
            `no response`: it may have been stored; repeat the request.
    """

    name: str
    unique_id: str
    topic: str
    status: str
    remark: str


class PageOfResends(msgspec.Struct):
    """Results of the messages of a page.

    Attributes:
        cursor: Cursor of the next page; null at the end.
        unknown: Brokers whose messages are missing.
    """

    results: list[ResendRow]
    cursor: str | None
    unknown: list[UnknownPart]


class GroupWithDeadLetters(msgspec.Struct):
    """Group that has dead letters.

    Attributes:
        messages, last_stored_at: Their number and the time of the last one; null: a part is
            unknown.
    """

    group: str
    messages: int | None
    last_stored_at: datetime | None


class GroupsWithDeadLetters(msgspec.Struct):
    """Groups that have dead letters.

    Attributes:
        unknown: Brokers whose dead letters are missing.
    """

    groups: list[GroupWithDeadLetters]
    unknown: list[UnknownPart]


async def list_quarantine(call: Call) -> PageOfUndelivered:
    """Return a page of the messages in quarantine."""
    return await _listed(call, "")


async def list_dead_letter_groups(call: Call) -> GroupsWithDeadLetters:
    """Return the groups that have dead letters."""
    states = await states_of_letters(call.session)
    counts: dict[str, list[DeadLetterCount]] = {}
    for part in values_of(states):
        for count in part:
            counts.setdefault(count.group, []).append(count)
    unknown = unknown_of(states)
    groups = [group_of(name, counts[name], is_known=not unknown) for name in sorted(counts)]
    return GroupsWithDeadLetters(groups, unknown)


async def states_of_letters(session: AccountSession) -> list[BrokerState]:
    """Return the counts of dead letters at each broker."""
    admin = session.admin
    return await of_masters(session, lambda one: admin.dead_letter_counts(brokers=[one.name]))


def group_of(
    name: str, parts: Iterable[DeadLetterCount], *, is_known: bool
) -> GroupWithDeadLetters:
    """Return the dead letters of a group from its parts at several brokers."""
    if not is_known:
        return GroupWithDeadLetters(name, None, None)
    parts = list(parts)
    times = [one.last_stored_at for one in parts if one.last_stored_at]
    return GroupWithDeadLetters(name, sum(one.messages for one in parts), max(times, default=None))


async def list_dead_letters(call: Call) -> PageOfUndelivered:
    """Return a page of the dead letters of a group."""
    return await _listed(call, call.path["name"])


async def resend_quarantine(call: Call) -> PageOfResends:
    """Send the messages of a page of the quarantine again."""
    return await _resent(call, "")


async def resend_dead_letters(call: Call) -> PageOfResends:
    """Send the messages of a page of a group's dead letters again."""
    return await _resent(call, call.path["name"])


async def _listed(call: Call, letters_of: str) -> PageOfUndelivered:
    query = call.query or UndeliveredQuery()
    page = await _page(call, query, letters_of)
    messages, unknown = page_values(page, query.cursor)
    return PageOfUndelivered(list(map(_row, messages)), page.cursor or None, unknown)


async def _resent(call: Call, letters_of: str) -> PageOfResends:
    body: SelectedResend = call.body
    page = await _page(call, body, letters_of, frozenset(body.names))
    messages, unknown = page_values(page, body.cursor)
    options = ResendOptions(topic=body.to_topic, without=frozenset(body.without))
    results = await call.session.admin.resend(messages, options, dry_run=body.dry_run)
    rows = [
        ResendRow(one.item.name, one.item.unique_id, one.topic, one.status.value, one.remark)
        for one in results
    ]
    return PageOfResends(rows, page.cursor or None, unknown)


async def _page(
    call: Call, query: UndeliveredQuery, letters_of: str, names: frozenset[str] = frozenset()
) -> BrokersPage:
    """Return a page of the list of all brokers."""
    search = UndeliveredSearch(
        letters_of=letters_of,
        names=names,
        topic=query.topic,
        group=query.group,
        from_ms=query.from_ms,
        until_ms=query.until_ms,
    )

    async def part(
        member: BrokerMember, cursor: str
    ) -> tuple[Sequence[UndeliveredMessage], str | None]:
        page = await call.session.admin.undelivered_page(
            search, member.name, cursor=cursor, count=query.limit
        )
        return page.items, page.cursor

    return await page_of_brokers(call.session, query.cursor, part)


def _row(item: UndeliveredMessage) -> UndeliveredRow:
    reason, detail = (item.reason, item.detail) if isinstance(item, Quarantined) else ("", "")
    return UndeliveredRow(
        name=item.name,
        unique_id=item.unique_id,
        offset_message_id=item.offset_message_id,
        stored_ms=item.record.store_ms,
        topic=item.topic,
        group=item.group,
        reason=reason,
        detail=detail,
    )


ENDPOINTS: Final = (
    Endpoint(
        path="/quarantine",
        handler=list_quarantine,
        summary="List messages in quarantine.",
        tag="undelivered",
        query=UndeliveredQuery,
        result=PageOfUndelivered,
    ),
    Endpoint(
        method="POST",
        path="/quarantine/resend",
        handler=resend_quarantine,
        summary="Send the messages of a page of the quarantine again, each once.",
        tag="undelivered",
        body=SelectedResend,
        result=PageOfResends,
    ),
    Endpoint(
        path="/dead-letters",
        handler=list_dead_letter_groups,
        summary="List the groups that have dead letters.",
        tag="undelivered",
        result=GroupsWithDeadLetters,
    ),
    Endpoint(
        path="/dead-letters/{name}",
        handler=list_dead_letters,
        summary="List the dead letters of a group.",
        tag="undelivered",
        query=UndeliveredQuery,
        result=PageOfUndelivered,
    ),
    Endpoint(
        method="POST",
        path="/dead-letters/{name}/resend",
        handler=resend_dead_letters,
        summary="Send the messages of a page of a group's dead letters again, each once.",
        tag="undelivered",
        body=SelectedResend,
        result=PageOfResends,
    ),
)
