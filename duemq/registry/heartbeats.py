"""Parser of heartbeats (code 34) of Java, Go and C++ clients. HeartbeatData, ConsumerData"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from duemq.registry.subscriptions import TAGS_MAX, ExpressionError, Subscription, parse_expression
from duemq.registry.subscriptions import tag_hashes as _hashes
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.topics import RETRY_PREFIX

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
SUBSCRIPTIONS_MAX = 4_096  # per group
CLIENT_ID_CHARS_MAX = 1_024
GROUP_CHARS_MAX = 255  # Validators.CHARACTER_MAX_LENGTH
TOPIC_CHARS_MAX = GROUP_CHARS_MAX + len(RETRY_PREFIX)  # of the retry topic of such a group
EXPRESSION_CHARS_MAX = 65_536


class HeartbeatLimits(Struct, frozen=True):
    """Limits of one heartbeat.

    Attributes:
        groups: Maximum producer and consumer groups (clientGroupsMax).
        subscriptions: Maximum subscriptions of all groups (heartbeatSubscriptionsMax).
    """

    groups: int = 4_096
    subscriptions: int = 65_536


DEFAULT_LIMITS = HeartbeatLimits()


class ConsumerEntry(Struct, frozen=True):
    """One consumer group of a heartbeat, enums by their Java names."""

    group: str
    consume_type: str
    message_model: str
    from_where: str
    subscriptions: tuple[Subscription, ...]


class Heartbeat(Struct, frozen=True):
    """Client and its groups; `fingerprint` is 0 unless the client uses heartbeat V2."""

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerEntry, ...]
    fingerprint: int = 0
    without_sub: bool = False


def parse_heartbeat(body: bytes, limits: HeartbeatLimits = DEFAULT_LIMITS) -> Heartbeat:
    """Parse the body of a heartbeat.

    C++ clients write enums as numbers and versions as text, and omit sets; Go clients write
    versions in nanoseconds. Unknown keys are ignored.

    Raises:
        RequestError: The body is malformed or exceeds a limit: SYSTEM_ERROR.
    """
    try:
        data = msgspec.json.decode(body)
        if not isinstance(data, dict):
            raise ValueError("the body is not an object")
        _check_counts(data, limits)
        return Heartbeat(
            client_id=_checked_text("clientID", _text(data.get("clientID")), CLIENT_ID_CHARS_MAX),
            producers=tuple(
                name for p in _list(data.get("producerDataSet")) if (name := _name(p)) != ""
            ),
            consumers=tuple(_consumer(c) for c in _list(data.get("consumerDataSet")) if _name(c)),
            fingerprint=_number(data.get("heartbeatFingerprint")),
            without_sub=data.get("withoutSub") is True,
        )
    except (ValueError, RecursionError, ExpressionError, msgspec.DecodeError) as fault:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"heartbeat body: {fault}") from fault


def _check_counts(data: dict[str, object], limits: HeartbeatLimits) -> None:
    """Check the numbers of groups and subscriptions before they are parsed."""
    consumers = _list(data.get("consumerDataSet"))
    groups = len(consumers) + len(_list(data.get("producerDataSet")))
    if groups > limits.groups:
        raise ValueError(
            f"{groups} groups; the limit is clientGroupsMax={limits.groups}. Use several "
            "connections"
        )
    count = sum(
        len(_list(each.get("subscriptionDataSet"))) for each in consumers if isinstance(each, dict)
    )
    if count > limits.subscriptions:
        raise ValueError(
            f"{count} subscriptions; the limit is heartbeatSubscriptionsMax={limits.subscriptions}"
        )


def _checked_text(name: str, text: str, chars_max: int) -> str:
    """Check a text and return it.

    Raises:
        ValueError: The text is too long or has control characters.
    """
    if len(text) > chars_max:
        raise ValueError(f"{name} has {len(text)} characters; the limit is {chars_max}")
    if any(char < " " or char == "\x7f" for char in text):
        raise ValueError(f"{name} {text!a} has control characters")
    return text


def parse_subscription(data: object) -> Subscription:
    """Parse a SubscriptionData object.

    Raises:
        ValueError: The object is malformed.
    """
    if not isinstance(data, dict):
        raise ValueError("a subscription is not an object")
    kind, expression = data.get("expressionType") or "TAG", data.get("subString")
    expression = expression if isinstance(expression, str) else None
    if expression is not None and len(expression) > EXPRESSION_CHARS_MAX:
        raise ValueError(f"an expression is longer than {EXPRESSION_CHARS_MAX} characters")
    subscription = parse_expression(
        _checked_text("topic", _text(data.get("topic")), TOPIC_CHARS_MAX),
        expression,
        kind if isinstance(kind, str) else "TAG",
        _number(data.get("subVersion")),
    )
    tags = tuple(t for t in _list(data.get("tagsSet")) if isinstance(t, str))
    if not subscription.is_tag or subscription.matches_all or not tags or len(tags) > TAGS_MAX:
        return subscription
    return Subscription(
        subscription.topic,
        subscription.expression,
        subscription.kind,
        tags,
        subscription.version,
        data.get("classFilterMode") is True,
        _hashes(tags),
    )


def _consumer(data: dict[str, object]) -> ConsumerEntry:
    listed = _list(data.get("subscriptionDataSet"))
    if len(listed) > SUBSCRIPTIONS_MAX:
        raise ValueError(f"{len(listed)} subscriptions; the limit is {SUBSCRIPTIONS_MAX}")
    return ConsumerEntry(
        group=_name(data),
        consume_type=_enum(data.get("consumeType"), CONSUME_TYPES),
        message_model=_enum(data.get("messageModel"), MESSAGE_MODELS),
        from_where=_enum(data.get("consumeFromWhere"), FROM_WHERE),
        subscriptions=tuple(parse_subscription(s) for s in listed),
    )


def _name(data: object) -> str:
    name = data.get("groupName") if isinstance(data, dict) else None
    return _checked_text("groupName", name, GROUP_CHARS_MAX) if isinstance(name, str) else ""


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("clientID or topic is missing")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20:
        return int(value)
    raise ValueError(f"{str(value)[:64]!r} is not a whole number")


def _enum(value: object, names: Sequence[str]) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    return value if isinstance(value, str) and value in names else names[0]
