"""Replies on a loop that is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from duemq.client import Client, Message, NoReply, Producer, Requester
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.log.properties import encode_properties

Run = Callable[..., Any]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_reply_in_the_turn_of_the_timeout_is_returned(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    handlers, sent = dict[int, Any](), dict[str, str]()

    def handle(client: Client, code: int, handler: object) -> None:
        handlers[code] = handler

    def read() -> None:
        fields = {"properties": encode_properties(sent).decode()}
        handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT](Request(326, fields, b"read"), None)

    async def route(client: Client, topic: str) -> Any:
        if is_read:
            asyncio.get_running_loop().call_soon(read)
        return SimpleNamespace(masters=list)

    async def send(producer: Producer, message: Message, properties: Mapping[str, str]) -> None:
        sent.update(properties)

    monkeypatch.setattr(Client, "handle", handle)
    monkeypatch.setattr(Client, "route", route)
    monkeypatch.setattr(Producer, "send_with", send)

    async def main() -> None:
        requester = Requester(broker="127.0.0.1:1")
        try:
            if is_read:
                reply = await requester.request(Message("T", b"x"), timeout_s=0)
                assert reply.body == b"read"
            else:
                with pytest.raises(NoReply):
                    await requester.request(Message("T", b"x"), timeout_s=0)
        finally:
            await requester.client.close()

    run(main())
