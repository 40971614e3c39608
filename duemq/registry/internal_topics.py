"""Internal topics, and the access of clients to each.

    WRITE  send (10, 310, 320), reply (324, 325), recall (370), the target of a commit (37)
    READ   pull (11, 361), query by key (12), view by log offset (33), queue units (321),
           send back (36), consume directly (309), commit, reset and copy offsets (15, 222, 314)

Codes 17, 18 and 215 never change or delete one of these topics. As Apache's protocol requires, code
37 ends half messages, and 323 resumes half messages that were given up. Codes that return only
numbers (14, 29 to 32, 202, 208, 303) are open, since tools request them for every topic. Code 9002
shows a pending message as it will be delivered; of a half message it shows only the state.

Access to every other topic depends on its perm.

Source: TopicValidator, AbstractSendMessageProcessor.msgCheck
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag
from typing import Final

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.topics import (
    CHECK_MAX_TIME_TOPIC,
    DECISION_TOPIC,
    HALF_TOPIC,
    INTERNAL_GROUP_PREFIX,
    LEVELS_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    OWNERSHIP_TOPIC,
    QUARANTINE_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OFFSET_TOPIC,
    ROCKSDB_OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SCHEDULES_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    TABLES_TOPIC,
    TIMER_TOPIC,
    TRACE_PREFIX,
)


class TopicAccess(Flag):
    """Access of clients to a topic."""

    NONE = 0
    READ = 1
    WRITE = 2


FULL_ACCESS: Final = TopicAccess.READ | TopicAccess.WRITE
INTERNAL_TOPICS: Final[Mapping[str, TopicAccess]] = {
    SCHEDULE_TOPIC: TopicAccess.NONE,
    TIMER_TOPIC: TopicAccess.NONE,
    HALF_TOPIC: TopicAccess.NONE,
    OP_HALF_TOPIC: TopicAccess.NONE,
    ROCKSDB_HALF_TOPIC: TopicAccess.NONE,
    ROCKSDB_OP_HALF_TOPIC: TopicAccess.NONE,
    ROCKSDB_OFFSET_TOPIC: TopicAccess.NONE,
    OWNERSHIP_TOPIC: TopicAccess.NONE,
    DECISION_TOPIC: TopicAccess.NONE,
    TABLES_TOPIC: TopicAccess.NONE,
    LEVELS_TOPIC: TopicAccess.NONE,
    SCHEDULES_TOPIC: TopicAccess.NONE,
    QUARANTINE_TOPIC: TopicAccess.READ,  # operators consume it
    CHECK_MAX_TIME_TOPIC: TopicAccess.READ,  # mqadmin resumeCheckHalfMessage views a message first
    OFFSET_MOVED_TOPIC: TopicAccess.READ,  # mqadmin startMonitoring subscribes to it
    SELF_TEST_TOPIC: TopicAccess.READ,
}


def is_internal(name: str) -> bool:
    """Return whether a topic belongs to the broker."""
    return name in INTERNAL_TOPICS or (
        name.startswith(SYSTEM_PREFIX) and not name.startswith(TRACE_PREFIX)
    )


READABLE: Final = frozenset(
    name for name, access in INTERNAL_TOPICS.items() if TopicAccess.READ in access
)


def may_read(name: str) -> bool:
    """Return whether clients may read a topic; each pull and each commit asks."""
    return not is_internal(name) or name in READABLE


def client_access(name: str) -> TopicAccess:
    """Return the access of clients to a topic, regardless of its perm."""
    if not is_internal(name):
        return FULL_ACCESS
    return INTERNAL_TOPICS.get(name, TopicAccess.NONE)


def check_readable(name: str) -> None:
    """Check that clients may read a topic and commit offsets to it.

    Raises:
        RequestError: With NO_PERMISSION.
    """
    if not may_read(name):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"topic [{name}] belongs to the broker: clients may not read it or set offsets in it. "
            f"`duemq timers` and `duemq levels` show pending messages",
        )


def check_writable(name: str) -> None:
    """Check that clients may store messages in a topic.

    Raises:
        RequestError: With NO_PERMISSION.
    """
    if not client_access(name) & TopicAccess.WRITE:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"sending message to topic [{name}] is forbidden: it belongs to the broker",
        )


def check_group(name: str) -> None:
    """Check that a consumer group is not internal.

    Raises:
        RequestError: With NO_PERMISSION.
    """
    if name.startswith(INTERNAL_GROUP_PREFIX):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"group [{name}] belongs to the broker: clients may not change its offsets",
        )
