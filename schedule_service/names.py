"""Names shared by the level service and other packages."""

from __future__ import annotations

from typing import Final

from delayed_delivery.quarantine import QUARANTINE_TOPIC as QUARANTINE_TOPIC
from delayed_delivery.redirected import HALF_TOPIC as HALF_TOPIC

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # TopicValidator.RMQ_SYS_SCHEDULE_TOPIC
SCHEDULE_QUEUES: Final = 18  # queues at the creation of the topic; higher levels add more
DECISION_TOPIC: Final = "DUEMQ_DECISIONS"  # DueMQ's: decisions about level messages
LEVELS_TOPIC: Final = "DUEMQ_LEVELS"  # DueMQ's: level tables of a master, for its replicas
