"""Request of a page: the login, its connections to brokers, parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from duemq.client.message import milliseconds
from duemq.console.blocks import PageContent
from duemq.console.bulk import BulkJobs
from duemq.console.catalogue import Translate
from duemq.console.logins import Login, LoginRole
from duemq.http.endpoints import Call, invalid
from duemq.http.sessions import AccountSession

NUMBER_DIGITS_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class PageCall:
    """Request of a page.

    Attributes:
        query: Parameters of the URL; of an action: those of its form.
        path: Parameters of the path.
        text: Returns texts in the language of the request.
        jobs: Bulk decisions.
        root: Path of the console.
    """

    session: AccountSession
    login: Login
    query: Mapping[str, str]
    path: Mapping[str, str]
    text: Translate
    jobs: BulkJobs
    root: str

    def number(self, name: str, default: int) -> int:
        """Return a parameter that is a whole number.

        Raises:
            Problem: It is not one.
        """
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
            raise invalid(f"{name}={text[:40]!r} is not a whole number")
        return int(text)

    def time_ms(self, name: str, default: int) -> int:
        """Return a parameter that is a time: in ms since the epoch, or as text in UTC.

        Raises:
            Problem: It is not one.
        """
        text = self.query.get(name, "")
        if text.isdigit() or not text:
            return self.number(name, default)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise invalid(f"{name}={text[:40]!r} is not a time") from None
        return milliseconds(time if time.tzinfo else time.replace(tzinfo=UTC))

    def handler_call(self, kind: type[msgspec.Struct], **fields: object) -> Call:
        """Return the call of a handler of the HTTP API, with a query of the kind.

        Raises:
            Problem: A field is invalid.
        """
        try:
            query = msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            raise invalid(str(error)) from None
        return Call(session=self.session, headers={}, path=self.path, query=query)


Load = Callable[[PageCall], Awaitable[PageContent]]
"""Returns the content of a page."""


@dataclass(frozen=True, slots=True)
class PageEntry:
    """PageContent of the console.

    Attributes:
        path: Path below the root of the console.
        title: Key of the title in the navigation; empty: the page is not in it.
        role: LoginRole that a login needs.
        action: Takes the action of a form that the page contains; None: it has none.
        interval_s: Seconds between two examinations of a live page; 0: the console's default.
    """

    path: str
    title: str
    load: Load
    role: LoginRole = LoginRole.VIEWER
    action: Load | None = None
    interval_s: float = 0.0
