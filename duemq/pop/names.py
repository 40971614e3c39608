"""Names of POP: revive topic, its group and tags. KeyBuilder, PopAckConstants."""

from __future__ import annotations

from typing import Final

from duemq_common.topics import INTERNAL_GROUP_PREFIX, REVIVE_PREFIX

REVIVE_GROUP: Final = INTERNAL_GROUP_PREFIX + "REVIVE_GROUP"


REVIVE_QUEUES: Final = 8  # reviveQueueNum


ORDER_QUEUE: Final = 999  # revive queue in the handles of orderly pops


CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"


def revive_topic(cluster: str) -> str:
    """Return the topic of a cluster's checkpoints and acknowledgements."""
    return REVIVE_PREFIX + cluster
