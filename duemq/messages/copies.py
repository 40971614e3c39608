"""Copies of messages that were sent again: FIND_COPIES (9022).

A tool that sends many dead letters again asks for a page of them, before it sends these, which of
them a topic has already. The search includes the part of the log that has no index yet, so a copy
that was stored before the request is found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from duemq.net import fields
from duemq.registry.internal_topics import check_readable
from duemq_common.bodies.copies import (
    COPIES_MAX,
    KEYS_MAX,
    NAME_CHARS_MAX,
    CopiesRequest,
    CopiesResponse,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, StoreError
from duemq_common.request import Request, RequestHandler, Response
from message_store.index.key_search import HIT_UNIQUE, search

if TYPE_CHECKING:
    from message_store.store import MessageStore

RECORDS_PER_TURN: Final = 16  # records read between two turns of the event loop


class CopiesProcessor:
    """Handler of FIND_COPIES (9022)."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def handlers(self) -> dict[int, RequestHandler]:
        """Return handlers by request code."""
        return {RequestCode.FIND_COPIES: self.find}

    async def find(self, request: Request) -> Response:
        """Return the marks of the copies of each message.

        Raises:
            RequestError: The request is malformed, or keys cannot be looked up now.
        """
        topic = fields.text(request, "topic")
        check_readable(topic)
        query = _parsed(request.body)
        try:
            keys = [key.decode() for key in query.keys]
            distinct = list(dict.fromkeys(keys))
            matches = await search(self._store, [topic], distinct)
        except UnicodeDecodeError as error:
            raise _illegal(f"a key is not UTF-8: {error}") from None
        except StoreError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        offsets: dict[str, list[int]] = {key: [] for key in keys}
        rows = zip(matches.key_at.tolist(), matches.offsets.tolist(), matches.hits, strict=True)
        for key_index, offset, hit in rows:
            if hit & HIT_UNIQUE:
                offsets[distinct[key_index]].append(offset)
        if sum(map(len, offsets.values())) > COPIES_MAX:
            text = f"more than {COPIES_MAX} messages of {topic} have these ids: give fewer"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        marks = {key: await self._marks(query.mark, each) for key, each in offsets.items()}
        return Response(body=msgspec.msgpack.encode(CopiesResponse([marks[key] for key in keys])))

    async def _marks(self, name: str, offsets: list[int]) -> list[str]:
        """Return the values of a property in records."""
        values = []
        for count, offset in enumerate(offsets, 1):
            try:
                value = self._store.read_record(offset).properties.get(name)
            except RecordUnreadable:
                continue
            if value is not None:
                values.append(value)
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return values


def _parsed(body: bytes | memoryview) -> CopiesRequest:
    try:
        query = msgspec.msgpack.decode(body, type=CopiesRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _illegal(f"the body is not a request for copies: {error}") from None
    if not 0 < len(query.keys) <= KEYS_MAX or not 0 < len(query.mark) <= NAME_CHARS_MAX:
        raise _illegal(f"give 1 to {KEYS_MAX} keys, and a mark of 1 to {NAME_CHARS_MAX} characters")
    if any(not 0 < len(key) <= NAME_CHARS_MAX for key in query.keys):
        raise _illegal(f"a key has 1 to {NAME_CHARS_MAX} bytes")
    return query


def _illegal(reason: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, reason)
