"""Rows of a batch with a property of recurring schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from message_store.layout import PROP_SCHEDULE, Row
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable

DERIVED_PREFIX: Final = "%"
"""First character of %RETRY% and %DLQ% topics, to which clients send what they have received."""


def schedule_rows(batch: PutBatch, topics: TopicTable) -> Iterator[int]:
    """Yield the rows that have a property of schedules and are not refused.

    Retries and dead letters of occurrences have such properties too, and are no schedules. After a
    refusal in a client's batch, the rest of the batch is skipped.
    """
    rows, end = batch.filled, 0
    flagged = (rows["prop_flags"] & PROP_SCHEDULE != 0) & (rows["status"] == 0)
    for index in np.flatnonzero(flagged).tolist():
        if index >= end and not topics.name(topic_of(rows[index])).startswith(DERIVED_PREFIX):
            yield index
            if rows[index]["status"]:
                end = batch.group_end(index)


def topic_of(row: Row) -> int:
    """Return the index of the topic to which a client has sent a message."""
    real_index = int(row["real_topic_index"])  # set if it is delayed
    return real_index if real_index >= 0 else int(row["topic_index"])
