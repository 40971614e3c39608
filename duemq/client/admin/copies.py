"""Copies of messages that were sent again: which of many messages a topic has already."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from duemq.client.admin.messages import QUERY_COUNT, MessagesAdmin
from duemq.client.routes import TopicRoute
from duemq_common.bodies.copies import KEYS_MAX, CopiesRequest, CopiesResponse
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import bytes_of

SEARCH_TIMEOUT_S: Final = 30.0
QUERIES_MAX: Final = 32  # to an Apache broker at the same time


class CopiesAdmin(MessagesAdmin):
    """Requests about copies of messages."""

    async def marks_of(
        self, route: TopicRoute, mark: str, unique_ids: Sequence[str]
    ) -> tuple[list[set[str] | None], bool]:
        """Return the values of a property in the records of each message, at a topic's brokers.

        A DueMQ broker searches for many messages at a time, an Apache broker for each.

        Args:
            mark: Property that only copies have.
        Returns:
            The values of each message, None if an Apache broker may not have returned all of its
            records; and whether all brokers are DueMQ brokers.
        Raises:
            Refused: A broker refused the request.
            Unreachable: A broker does not respond, or a broker group has no master.
        """
        values: dict[str, set[str] | None] = {one: set() for one in unique_ids}
        distinct, are_own = list(values), True
        for broker_name in route.addresses:
            address = route.any_member(broker_name)
            for first in range(0, len(distinct), KEYS_MAX):
                part = distinct[first : first + KEYS_MAX]
                lists: Sequence[list[str] | None] | None
                lists = await self._marks_at(address, route.topic, mark, part)
                if lists is None:
                    are_own = False
                    lists = await self._marks_of_each(address, route.topic, mark, part)
                for one, marks in zip(part, lists, strict=True):
                    before = values[one]
                    values[one] = None if marks is None or before is None else {*before, *marks}
        return [values[one] for one in unique_ids], are_own

    async def _marks_at(
        self, address: str, topic: str, mark: str, unique_ids: Sequence[str]
    ) -> list[list[str]] | None:
        """Return the marks at one broker; None: it does not know the request."""
        keys = [one.encode("utf-8", "surrogatepass") for one in unique_ids]
        body = msgspec.msgpack.encode(CopiesRequest(mark, keys))
        code = RequestCode.FIND_COPIES
        response = await self.client.call(
            address, code, {"topic": topic}, body, timeout_s=SEARCH_TIMEOUT_S
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        return msgspec.msgpack.decode(bytes_of(response), type=CopiesResponse).marks

    async def _marks_of_each(
        self, address: str, topic: str, mark: str, unique_ids: Sequence[str]
    ) -> list[list[str] | None]:
        """Return the marks at an Apache broker, with a query for each message.

        None: the broker has returned as many records as it does at most.
        """
        marks: list[list[str] | None] = []
        for first in range(0, len(unique_ids), QUERIES_MAX):
            part = unique_ids[first : first + QUERIES_MAX]
            queries = (self.records_by_id(address, topic, one) for one in part)
            for records in await asyncio.gather(*queries):
                properties = (record.properties for record in records)
                values = [each[mark] for each in properties if mark in each]
                marks.append(None if len(records) >= QUERY_COUNT else values)
        return marks
