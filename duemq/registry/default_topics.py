"""Topics that every broker creates at its start. TopicConfigManager.init"""

from __future__ import annotations

from collections.abc import Iterable

from delayed_delivery.plugin import SystemTopic
from duemq.configuration.config import BrokerConfig
from duemq.registry.topic_config import TopicConfig
from duemq_common.topics import (
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    PERM_BOTH,
    PERM_INHERIT,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
)


def default_topics(
    config: BrokerConfig, system_topics: Iterable[SystemTopic] = ()
) -> dict[str, TopicConfig]:
    """Return the default topics by name. TopicConfigManager.init"""
    cluster, broker = config.cluster_name, config.broker_name
    rows = [
        (SELF_TEST_TOPIC, 1, PERM_BOTH),
        ("BenchmarkTest", 1024, PERM_BOTH),
        (cluster, 16, 7 if config.cluster_topic_enable else PERM_INHERIT),
        (broker, 1, 7 if config.broker_topic_enable else PERM_INHERIT),
        (OFFSET_MOVED_TOPIC, 1, PERM_BOTH),
        (SCHEDULE_TOPIC, 18, PERM_BOTH),
        (f"{cluster}_REPLY_TOPIC", 1, PERM_BOTH),
        (REVIVE_PREFIX + cluster, 8, PERM_BOTH),
        (f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT),
        (HALF_TOPIC, 1, PERM_BOTH),
        (OP_HALF_TOPIC, 1, PERM_BOTH),
        (TIMER_TOPIC, 1, PERM_BOTH),
    ]
    if config.auto_create_topic:
        rows.append((TEMPLATE_TOPIC, config.default_topic_queues, 7))
    if config.trace_topic_enable:
        rows.append((config.trace_topic, 1, PERM_BOTH))
    rows.extend((topic.name, topic.queues, topic.perm) for topic in system_topics)
    return {
        name: TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)
        for name, queues, perm in rows
    }


def at_least(topic: TopicConfig, queues: int) -> TopicConfig:
    """Return the topic with at least `queues` queues."""
    return topic.replace(
        read_queues=max(topic.read_queues, queues), write_queues=max(topic.write_queues, queues)
    )
