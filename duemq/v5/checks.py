"""Validation of v5 requests, with the status codes of Apache's proxy.

Source: GrpcValidator
"""

from __future__ import annotations

import unicodedata
from typing import Final

from duemq.registry.internal_topics import is_internal
from duemq.registry.topic_config import SYSTEM_TOPICS
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from duemq_common.text import GROUP_BYTES_MAX, name_fault
from duemq_common.topics import INTERNAL_GROUP_PREFIX

INVISIBLE_MS_MIN: Final = 10_000  # minInvisibleTimeMillsForRecv
INVISIBLE_MS_MAX: Final = 12 * 3_600_000  # maxInvisibleTimeMills
MESSAGE_GROUP_BYTES_MAX: Final = 64  # maxMessageGroupSize, exclusive
TIME_MS_MAX: Final = 253_402_300_799_999  # end of the year 9999: maximum of a protobuf Timestamp


def topic_of(resource: v2.Resource) -> str:
    """Return the topic name of a resource.

    Raises:
        V5Error: The name is invalid, or is reserved for the system.
    """
    name = resource.name
    if fault := name_fault(name):
        raise V5Error(v2.ILLEGAL_TOPIC, f"The specified topic is illegal: {fault}")
    if name in SYSTEM_TOPICS or is_internal(name):
        raise V5Error(v2.ILLEGAL_TOPIC, "cannot access system topic")
    return name


def group_of(resource: v2.Resource) -> str:
    """Return the consumer group name of a resource.

    Raises:
        V5Error: The name is invalid, or is reserved for the system.
    """
    name = resource.name
    if fault := name_fault(name, bytes_max=GROUP_BYTES_MAX):
        raise V5Error(v2.ILLEGAL_CONSUMER_GROUP, f"the specified group is illegal: {fault}")
    if name.startswith(INTERNAL_GROUP_PREFIX):
        raise V5Error(v2.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return name


def check_invisible(invisible_ms: int, ms_min: int = 0) -> int:
    """Check an invisible time and return it.

    Raises:
        V5Error: The time is too short or too long.
    """
    if invisible_ms < ms_min:
        text = f"the invisibleTime is too small. min is {ms_min}"
        raise V5Error(v2.ILLEGAL_INVISIBLE_TIME, text)
    if invisible_ms > INVISIBLE_MS_MAX:
        text = f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}"
        raise V5Error(v2.ILLEGAL_INVISIBLE_TIME, text)
    return invisible_ms


def check_tag(tag: str) -> None:
    """Check the tag of a message.

    Raises:
        V5Error: The tag is blank, or has a forbidden character.
    """
    if "|" in tag:
        raise V5Error(v2.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    _check_text(tag, "tag", v2.ILLEGAL_MESSAGE_TAG)


def check_key(key: str) -> None:
    """Check a key of a message.

    Raises:
        V5Error: The key is blank, or has a control character.
    """
    _check_text(key, "key", v2.ILLEGAL_MESSAGE_KEY)


def check_message_group(name: str) -> None:
    """Check the message group of a message.

    Raises:
        V5Error: The name is too long or blank, or has a control character.
    """
    if len(name.encode()) >= MESSAGE_GROUP_BYTES_MAX:
        text = f"message group exceed the max size {MESSAGE_GROUP_BYTES_MAX}"
        raise V5Error(v2.ILLEGAL_MESSAGE_GROUP, text)
    _check_text(name, "message group", v2.ILLEGAL_MESSAGE_GROUP)


def check_property(name: str, value: str) -> None:
    """Check a property set by an application.

    Raises:
        V5Error: The name or the value has a control character.
    """
    if has_control_character(name) or has_control_character(value):
        text = "key and value of a property cannot contain control characters"
        raise V5Error(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _check_text(text: str, name: str, code: v2.Code) -> None:
    if text and not text.strip():
        raise V5Error(code, f"{name} cannot be the char sequence of whitespace")
    if has_control_character(text):
        raise V5Error(code, f"{name} cannot contain control character")


def has_control_character(text: str) -> bool:
    """Return whether a text has a control character; properties use two as separators."""
    return not text.isprintable() and any(unicodedata.category(each) == "Cc" for each in text)
