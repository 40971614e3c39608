"""Permissions of topics, for calls that need a queue to read or to write.

Source: MessageQueueView; ConsumerProcessor and ProducerProcessor of Apache's proxy
"""

from __future__ import annotations

from duemq.registry.topic_config import TopicConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from duemq_common.topics import PERM_READ, PERM_WRITE


def check_readable(topic: TopicConfig, broker_permission: int) -> None:
    """Check that a topic has a queue that consumers may read.

    Raises:
        V5Error: It has none.
    """
    if not topic.perm & broker_permission & PERM_READ or topic.read_queues <= 0:
        raise V5Error(v2.FORBIDDEN, f"no readable queue: {_permissions(topic, broker_permission)}")


def check_writable(topic: TopicConfig, broker_permission: int) -> None:
    """Check that a topic has a queue that producers may write.

    Raises:
        V5Error: It has none.
    """
    if not topic.perm & broker_permission & PERM_WRITE or topic.write_queues <= 0:
        raise V5Error(v2.FORBIDDEN, f"no writable queue: {_permissions(topic, broker_permission)}")


def _permissions(topic: TopicConfig, broker_permission: int) -> str:
    return (
        f"topic {topic.name} has perm {topic.perm}, {topic.read_queues} read queues and "
        f"{topic.write_queues} write queues; brokerPermission is {broker_permission}"
    )
