"""Topic configuration, its JSON form and attributes, and the system topics.

Source: TopicConfig, TopicValidator, TopicAttributes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from duemq.registry.internal_topics import TopicAccess, client_access
from duemq_common.data_version import boolean, integer
from duemq_common.topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    PERM_MAX,
    PERM_READ,
    PERM_WRITE,
    ROCKSDB_OFFSET_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TEMPLATE_TOPIC,
    TRACE_TOPIC,
)
from message_store.queues.topic_table import NAME_BYTES_MAX, QUEUES_MAX

log = logging.getLogger(__name__)

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


SYSTEM_TOPICS = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRACE_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        ROCKSDB_OFFSET_TOPIC,
    }
)
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_MEMBERS = frozenset(
    {
        "attributes",
        "order",
        "perm",
        "readQueueNums",
        "topicFilterType",
        "topicName",
        "topicSysFlag",
        "writeQueueNums",
    }
)


class TopicConfig(Struct, frozen=True, kw_only=True):
    """Configuration of one topic.

    Attributes:
        read_queues, write_queues: Consumers use queues 0..read-1, producers 0..write-1.
        perm: Bits 1 inherit, 2 write, 4 read.
        sys_flag: Bit 0 unit, bit 1 unit subscription.
        extra: Unknown JSON members, written back unchanged.
    """

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether clients may not send to the topic."""
        return not client_access(self.name) & TopicAccess.WRITE

    def replace(self, **changes: Any) -> TopicConfig:
        """Return a copy with changed values."""
        return msgspec.structs.replace(self, **changes)

    def to_json(self) -> dict[str, object]:
        """Return the object as 5.3.3 writes it, names sorted."""
        members = {
            **self.extra,
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }
        return dict(sorted(members.items()))

    @classmethod
    def from_json(cls, data: object, name: str = "") -> TopicConfig:
        """Decode the JSON form of any version.

        Args:
            name: Key of the object in its table; used if the object has no name.
        Raises:
            ValueError: The object is invalid.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"topic {name!r} is {type(data).__name__}, not an object")
        attributes = data.get("attributes") or {}
        if not isinstance(attributes, Mapping):
            raise ValueError(f"topic {name!r}: attributes is not an object")
        topic = cls(
            name=str(data.get("topicName") or name),
            read_queues=integer(data, "readQueueNums", 16),
            write_queues=integer(data, "writeQueueNums", 16),
            perm=integer(data, "perm", PERM_READ | PERM_WRITE),
            filter_type=_filter_type(data.get("topicFilterType")),
            sys_flag=integer(data, "topicSysFlag", 0),
            order=boolean(data, "order", False),
            attributes={str(key): str(value) for key, value in attributes.items()},
            extra={key: value for key, value in data.items() if key not in _MEMBERS},
        )
        fault = topic.fault()
        if fault:
            raise ValueError(f"topic {topic.name!r}: {fault}")
        return topic

    def fault(self) -> str:
        """Return the reason why the topic is invalid; empty: it is valid."""
        if not 0 < len(self.name.encode()) <= NAME_BYTES_MAX or self.name in (".", ".."):
            return f"the name must have 1 to {NAME_BYTES_MAX} bytes"
        if "/" in self.name or "\0" in self.name:
            return "the name has a character that a directory name cannot have"
        for kind, count in (("read", self.read_queues), ("write", self.write_queues)):
            if not 0 <= count <= QUEUES_MAX:
                return f"{count} {kind} queues; the range is 0 to {QUEUES_MAX}"
        if not 0 <= self.perm <= PERM_MAX:
            return f"perm {self.perm} is not a sum of 1 inherit, 2 write, 4 read, 8 priority"
        return ""


def _filter_type(value: object) -> str:
    if value is None:
        return FILTER_TYPES[0]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(FILTER_TYPES):
        return FILTER_TYPES[value]
    if value not in FILTER_TYPES:
        raise ValueError(f"topicFilterType {value!r} is not one of {', '.join(FILTER_TYPES)}")
    return str(value)


# -- attributes -----------------------------------------------------------------------------------

MESSAGE_TYPE = "message.type"
PRIORITY_TYPE = "PRIORITY"
PRIORITY_FACTOR = "priority.factor"
PRIORITY_FACTOR_MAX = 100

ATTRIBUTES_MAX = 64
LONG_MAX = (1 << 63) - 1


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value in words


def _is_time(value: str) -> bool:
    digits = value.removeprefix("+")
    return value == "-1" or (digits.isascii() and digits.isdigit() and int(digits) <= LONG_MAX)


def _is_percentage(value: str) -> bool:
    return value.isascii() and value.isdigit() and int(value[:4]) <= PRIORITY_FACTOR_MAX


Attributes = Mapping[str, tuple[bool, Callable[[str], bool]]]
"""Attributes by name: whether they are changeable, and the check of their value."""

TOPIC_ATTRIBUTES: Attributes = {
    "cleanup.policy": (False, _one_of("DELETE")),
    MESSAGE_TYPE: (
        True,
        _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"),
    ),
    "queue.type": (False, _one_of("SimpleCQ")),
    "reserve.time": (True, _is_time),
}
GROUP_ATTRIBUTES: Attributes = {PRIORITY_FACTOR: (True, _is_percentage)}
NO_LITE_TOPICS = "this broker has no lite topics: use a topic, with tags or SQL filters"
LITE_PREFIX = "lite."  # of attributes of topics and groups
UNSUPPORTED = {
    (MESSAGE_TYPE, "LITE"): NO_LITE_TOPICS,
    ("queue.type", "BatchCQ"): "this broker does not support BatchCQ: omit queue.type",
    ("cleanup.policy", "COMPACTION"): "this broker does not compact topics: omit cleanup.policy",
}
"""Unsupported values of Apache's: with them, Apache could not open this broker's store."""


def message_type(attributes: Mapping[str, str]) -> str:
    """Return the type of a topic's messages (`message.type`); the default is NORMAL."""
    name = attributes.get(MESSAGE_TYPE) or attributes.get(f"+{MESSAGE_TYPE}") or "NORMAL"
    return name.upper()


def priority_factor(attributes: Mapping[str, str]) -> int:
    """Return the percentage of a group's pops that read queues by priority; the default is 100."""
    value = attributes.get(PRIORITY_FACTOR, "")
    return int(value) if _is_percentage(value) else PRIORITY_FACTOR_MAX


def parse_attribute_changes(text: str) -> dict[str, str]:
    """Parse `+key=value,-key` to {"+key": "value", "-key": ""}.

    Raises:
        ValueError: An entry is malformed, or a key occurs twice.
    Source: AttributeParser.parseToMap
    """
    changes: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = entry.partition("=")
        adds = key.startswith("+") and equals and value
        if not (adds or (key.startswith("-") and not equals)) or len(key) < 2:
            raise ValueError(f"attribute {entry!r} is neither +key=value nor -key")
        if key in changes or len(changes) >= ATTRIBUTES_MAX:
            raise ValueError(
                f"attribute {key!r} occurs twice, or there are more than {ATTRIBUTES_MAX}"
            )
        changes[key] = value
    return changes


def alter_attributes(
    old: Mapping[str, str] | None,
    changes: Mapping[str, str],
    *,
    supported: Attributes = TOPIC_ATTRIBUTES,
) -> dict[str, str]:
    """Apply changes in the form of `parse_attribute_changes`; return the new attributes.

    Args:
        old: Current attributes; None: the topic or group is new.
        supported: Supported attributes.
    Raises:
        ValueError: An attribute is unknown or not changeable, or a value is invalid.
    Source: AttributeUtil.alterCurrentAttributes
    """
    altered = dict(old or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or not key:
            raise ValueError(f"attribute {signed!r} begins with neither + nor -")
        removes_unsupported = sign == "-" and (key, altered.get(key)) in UNSUPPORTED
        if not removes_unsupported:
            _check_attribute(supported, key, value, deletes=sign == "-", is_new=old is None)
        if sign == "+":
            altered[key] = value
        elif altered.pop(key, None) is None:
            raise ValueError(f"attribute {key!r} cannot be removed: it is not set")
    return altered


def _check_attribute(
    supported: Attributes, key: str, value: str, *, deletes: bool, is_new: bool
) -> None:
    if key not in supported and key.startswith(LITE_PREFIX):
        raise ValueError(f"attribute {key!r} is not supported: {NO_LITE_TOPICS}")
    if key not in supported:
        names = ", ".join(supported) or "none"
        raise ValueError(f"unsupported key: there is no attribute {key!r}; there are {names}")
    if not deletes and (key, value) in UNSUPPORTED:
        raise ValueError(f"attribute {key!r} cannot be {value!r}: {UNSUPPORTED[key, value]}")
    changeable, fits = supported[key]
    if not changeable and not is_new:
        raise ValueError(f"attribute {key!r} can only be set when the topic is created")
    if not deletes and not fits(value):
        raise ValueError(f"attribute {key!r} cannot be {value!r}")


def warn_unsupported(topics: Iterable[TopicConfig]) -> None:
    """Log a warning for each unsupported attribute value."""
    for topic in topics:
        for name, value in topic.attributes.items():
            if (name, value) in UNSUPPORTED:
                log.warning(
                    "topic %s has the attribute %s=%s, which this broker does not support: its "
                    "queues are SimpleCQ and not compacted, and an Apache broker refuses "
                    "such queues. Remove it: mqadmin updateTopic -t %s -a=-%s",
                    topic.name,
                    name,
                    value,
                    topic.name,
                    name,
                )
