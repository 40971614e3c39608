"""Search for messages in quarantine and dead letters, and the form that sends its hits again."""

from __future__ import annotations

from typing import Final, TypeVar

from duemq.client.admin.messages import TIME_MS_MAX
from duemq.client.admin.resends import ResendOptions, UndeliveredSearch
from duemq.console.blocks import Field, Form, Key
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.console.pages.timers import time_field
from duemq.http.endpoints import NO_CURSOR, invalid

RESEND: Final = "resend"
ItemT = TypeVar("ItemT")


def undelivered_search(call: PageCall, letters_of: str = "") -> UndeliveredSearch:
    """Return the search of a form.

    Args:
        letters_of: Group whose dead letters the page shows; empty: that of the form, if it has one.
    """
    return UndeliveredSearch(
        letters_of=letters_of or call.query.get("letters_of", ""),
        topic=call.query.get("topic", "").strip(),
        group=call.query.get("group", "").strip(),
        from_ms=call.time_ms("from", 0),
        until_ms=call.time_ms("until", TIME_MS_MAX),
    )


def resend_options(call: PageCall) -> ResendOptions:
    """Return how the messages of a form are sent again."""
    return ResendOptions(topic=call.query.get("to_topic", "").strip())


def search_parameters(search: UndeliveredSearch) -> dict[str, str]:
    """Return the search as parameters of the page."""
    texts = {
        "topic": search.topic,
        "group": search.group,
        "from": time_field(search.from_ms),
        "until": time_field(search.until_ms),
    }
    return {name: text for name, text in texts.items() if text}


def search_form(search: UndeliveredSearch, path: str) -> Form:
    """Return the form of the search."""
    values = search_parameters(search)
    fields = [
        Field("topic", Key("column.topic"), values.get("topic", "")),
        Field("group", Key("column.group"), values.get("group", "")),
        Field("from", Key("undelivered.from"), values.get("from", ""), "datetime-local"),
        Field("until", Key("undelivered.until"), values.get("until", ""), "datetime-local"),
    ]
    if search.letters_of:
        del fields[1]
    return Form(Key("timers.search"), path, fields)


def resend_forms(call: PageCall, search: UndeliveredSearch, *, has_hits: bool) -> list[object]:
    """Return the form that prepares to send all hits again, for those who may."""
    if not has_hits or call.login.role < LoginRole.OPERATOR:
        return []
    hidden = [("action", RESEND), *search_parameters(search).items()]
    if search.letters_of:
        hidden.append(("letters_of", search.letters_of))
    target = Field("to_topic", Key("undelivered.to_topic"))
    return [Form(Key("bulk.list"), "/bulk", [target], "post", hidden, Key("undelivered.all_hits"))]


async def undelivered_items(
    call: PageCall,
    search: UndeliveredSearch,
    broker: str,
    cursor: str,
    count: int,
    kind: type[ItemT],
) -> tuple[list[ItemT], str | None]:
    """Return messages of one kind from a cursor on, and the next cursor.

    Raises:
        Problem: The cursor is not one of this list.
    """
    try:
        page = await call.session.admin.undelivered_page(search, broker, cursor=cursor, count=count)
    except ValueError:
        raise invalid(NO_CURSOR) from None
    return [item for item in page.items if isinstance(item, kind)], page.cursor
