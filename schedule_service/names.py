"""Names that the level service and its neighbours agree on."""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # TopicValidator.RMQ_SYS_SCHEDULE_TOPIC
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"  # TopicValidator.RMQ_SYS_TRANS_HALF_TOPIC
QUARANTINE_TOPIC: Final = "DUEMQ_QUARANTINE"
SCHEDULE_QUEUES: Final = 18  # queues the topic is created with; deeper levels use more
