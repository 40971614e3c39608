"""The body of code 34, as Java, Go and C++ clients write it. HeartbeatData, ConsumerData."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from broker.remoting.codes import ResponseCode
from broker.subscriptions import TAGS_MAX, ExpressionError, Subscription, parse_expression
from broker.subscriptions import tag_hashes as _hashes
from message_store.errors import RequestError

BROADCASTING = "BROADCASTING"
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = (BROADCASTING, "CLUSTERING")
FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
SUBSCRIPTIONS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    """One consumer group of a heartbeat, enums by their Java names."""

    group: str
    consume_type: str
    message_model: str
    from_where: str
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a client says of itself. `fingerprint` is not 0 from clients that use V2."""

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerEntry, ...]
    fingerprint: int = 0
    without_sub: bool = False


def parse_heartbeat(body: bytes) -> Heartbeat:
    """Return the heartbeat in a body.

    C++ writes enums as numbers and versions as text, and leaves sets out; Go writes versions in
    nanoseconds. Unknown keys are ignored.

    Raises:
        RequestError: With SYSTEM_ERROR when it is not JSON or not of this shape.
    """
    try:
        data = msgspec.json.decode(body)
        if not isinstance(data, dict):
            raise ValueError("the body is not an object")
        return Heartbeat(
            client_id=_text(data.get("clientID")),
            producers=tuple(
                name for p in _list(data.get("producerDataSet")) if (name := _name(p)) != ""
            ),
            consumers=tuple(_consumer(c) for c in _list(data.get("consumerDataSet")) if _name(c)),
            fingerprint=_number(data.get("heartbeatFingerprint")),
            without_sub=data.get("withoutSub") is True,
        )
    except (ValueError, RecursionError, ExpressionError, msgspec.DecodeError) as fault:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"heartbeat body: {fault}") from fault


def parse_subscription(data: Any) -> Subscription:
    """Return one SubscriptionData object.

    Raises:
        ValueError: If it is not of that shape.
    """
    if not isinstance(data, dict):
        raise ValueError("a subscription is not an object")
    kind = data.get("expressionType") or "TAG"
    found = parse_expression(
        _text(data.get("topic")),
        data.get("subString") if isinstance(data.get("subString"), str) else None,
        kind if isinstance(kind, str) else "TAG",
        _number(data.get("subVersion")),
    )
    tags = tuple(t for t in _list(data.get("tagsSet")) if isinstance(t, str))
    if not found.is_tag or found.matches_all or not tags or len(tags) > TAGS_MAX:
        return found
    return Subscription(
        found.topic,
        found.expression,
        found.kind,
        tags,
        found.version,
        data.get("classFilterMode") is True,
        _hashes(tags),
    )


def _consumer(data: dict[str, Any]) -> ConsumerEntry:
    told = _list(data.get("subscriptionDataSet"))
    if len(told) > SUBSCRIPTIONS_MAX:
        raise ValueError(f"{len(told)} subscriptions; the limit is {SUBSCRIPTIONS_MAX}")
    return ConsumerEntry(
        group=_name(data),
        consume_type=_enum(data.get("consumeType"), CONSUME_TYPES),
        message_model=_enum(data.get("messageModel"), MESSAGE_MODELS),
        from_where=_enum(data.get("consumeFromWhere"), FROM_WHERE),
        subscriptions=tuple(parse_subscription(s) for s in told),
    )


def _name(data: Any) -> str:
    name = data.get("groupName") if isinstance(data, dict) else None
    return name if isinstance(name, str) else ""


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("clientID or topic is missing")
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20:
        return int(value)
    raise ValueError(f"{str(value)[:64]!r} is not a whole number")


def _enum(value: Any, names: Sequence[str]) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    return value if isinstance(value, str) and value in names else names[0]
