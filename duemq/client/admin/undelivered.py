"""Search for undelivered messages: those in quarantine, and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from duemq.client.admin.dead_letters import DeadLettersAdmin, dead_letter
from duemq.client.admin.quarantine import quarantined
from duemq.client.admin.resends import ResendsAdmin, UndeliveredMessage, UndeliveredSearch
from duemq.client.admin.topic_page import topic_page
from duemq.client.bulk_decisions import OnFailure
from duemq.client.errors import ClientError, NoRoute
from duemq.client.message import EPOCH, ReceivedMessage

PAGE_COUNT: Final = 256
DATETIME_MS_MAX: Final = 253_402_300_799_000  # end of the year 9999


@dataclass(frozen=True, slots=True)
class UndeliveredPage:
    """Messages of a search at one broker, oldest first; there may be none before the last page.

    Attributes:
        cursor: Cursor of the next page; None: this is the last one.
    """

    items: Sequence[UndeliveredMessage]
    cursor: str | None


class UndeliveredAdmin(DeadLettersAdmin, ResendsAdmin):
    """Requests about messages in quarantine and dead letters."""

    async def undelivered_page(
        self, search: UndeliveredSearch, broker: str, *, cursor: str = "", count: int = PAGE_COUNT
    ) -> UndeliveredPage:
        """Return a page of a search at one broker.

        Raises:
            ValueError: The cursor is malformed.
            NoRoute: The broker is not registered at the name server.
            Unreachable: The broker does not respond.
        """
        if not self.client.broker:  # without it, the route of the topic does not have the broker
            await self.masters([broker])
        since_ms = min(search.from_ms, DATETIME_MS_MAX)
        since = EPOCH + timedelta(milliseconds=since_ms) if since_ms else None
        page = await topic_page(
            self.client, search.store_topic, broker, cursor=cursor, count=count, since=since
        )
        items = [_undelivered(search, message) for message in page.messages]
        return UndeliveredPage([one for one in items if search.selects(one)], page.cursor)

    async def undelivered(
        self, search: UndeliveredSearch, failed: OnFailure | None = None
    ) -> AsyncIterator[tuple[str, str, UndeliveredPage]]:
        """Yield broker, cursor and content of the pages of a search, broker by broker.

        Args:
            failed: Gets the brokers that do not respond; None: their errors are raised.
        Raises:
            NoRoute: The group has no topic of dead letters.
            Unreachable: A broker does not respond.
        """
        topic = search.store_topic
        if search.letters_of and await self.client.fetch_route(topic) is None:
            raise NoRoute(f"group {search.letters_of} has no dead letters")
        for master in await self.masters():
            cursor: str | None = ""
            try:
                while cursor is not None:
                    page = await self.undelivered_page(search, master.name, cursor=cursor)
                    yield master.name, cursor, page
                    cursor = page.cursor
            except ClientError as error:
                if failed is None:
                    raise
                failed(master.name, error)


def _undelivered(search: UndeliveredSearch, message: ReceivedMessage) -> UndeliveredMessage:
    if search.letters_of:
        return dead_letter(search.letters_of, message)
    return quarantined(message.queue.broker_name, message.record)
