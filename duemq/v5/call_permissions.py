"""Permissions of calls: for each method, the request of a remoting client that needs the same.

`MessagingService` checks them before a handler runs, so a handler has no effect for an account
without the permission. Telemetry, Heartbeat and NotifyClientTermination depend on the settings of
a client: their handlers check the topics and groups in them, before they register or remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf.message import Message

from duemq.net.codes import RequestCode
from duemq.v5 import checks


class Permission(NamedTuple):
    """Request whose permission a call needs."""

    code: RequestCode
    fields: dict[str, str]
    body: bytes = b""


def permission_of(method: str, request: Message) -> Permission | None:
    """Return the permission that a call needs; None: its handler checks, or refuses the call.

    Raises:
        V5Error: A name in the request is invalid.
    """
    find = _PERMISSIONS.get(method)
    return find(request) if find is not None else None


def _on_topic(code: RequestCode) -> Callable[[Any], Permission]:
    return lambda request: Permission(code, {"topic": checks.topic_of(request.topic)})


def _on_consumer(code: RequestCode) -> Callable[[Any], Permission]:
    def permission(request: Any) -> Permission:
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        return Permission(code, {"consumerGroup": group, "topic": topic})

    return permission


def _send(request: Any) -> Permission | None:
    if not request.messages:
        return None
    topic = checks.topic_of(request.messages[0].topic)
    return Permission(RequestCode.SEND_MESSAGE, {"topic": topic})


def _receive(request: Any) -> Permission:
    topic = checks.topic_of(request.message_queue.topic)
    group = checks.group_of(request.group)
    return Permission(RequestCode.POP_MESSAGE, {"consumerGroup": group, "topic": topic})


def _assignment(request: Any) -> Permission:
    topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
    body = msgspec.json.encode({"consumerGroup": group, "topic": topic})
    return Permission(RequestCode.QUERY_ASSIGNMENT, {}, body)


_PERMISSIONS: Final[Mapping[str, Callable[[Any], Permission | None]]] = {
    "QueryRoute": _on_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC),
    "QueryAssignment": _assignment,
    "SendMessage": _send,
    "RecallMessage": _on_topic(RequestCode.RECALL_MESSAGE),
    "ReceiveMessage": _receive,
    "AckMessage": _on_consumer(RequestCode.ACK_MESSAGE),
    "ChangeInvisibleDuration": _on_consumer(RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    "ForwardMessageToDeadLetterQueue": _on_consumer(RequestCode.ACK_MESSAGE),
    "EndTransaction": _on_topic(RequestCode.END_TRANSACTION),
}
