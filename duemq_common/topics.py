"""Names of topics and groups that belong to the broker, and permissions of topics.

Source: TopicValidator, MixAll, PermName, PopAckConstants, TimerMessageStore
"""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # pending messages of levels
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
PENDING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"  # from 5.4 on
ROCKSDB_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
ROCKSDB_OFFSET_TOPIC: Final = "CHECKPOINT_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages that were given up
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TEMPLATE_TOPIC: Final = "TBW102"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

DECISION_TOPIC: Final = "DUEMQ_DECISIONS"  # decisions about level messages
LEVELS_TOPIC: Final = "DUEMQ_LEVELS"  # level tables of a master, for its replicas
OWNERSHIP_TOPIC: Final = "DUEMQ_MIGRATION"
QUARANTINE_TOPIC: Final = "DUEMQ_QUARANTINE"
SCHEDULES_TOPIC: Final = "DUEMQ_SCHEDULES"  # journal of recurring schedules
TABLES_TOPIC: Final = "DUEMQ_TABLES"  # journal of topics and groups

SYSTEM_PREFIX: Final = "rmq_sys_"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"  # checkpoints of pops
TRACE_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # clients send traces to it
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

INTERNAL_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_BOTH: Final = PERM_READ | PERM_WRITE
PERM_MAX: Final = 15
