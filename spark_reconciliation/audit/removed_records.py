"""Units that point before the start of the log: their records were removed.

    queue of a level     unit | unit | unit  ...          pending: the cursor has not passed it
    queue of the timers  unit | unit | unit  ...          pending: the timers have not enqueued it
                           |      |      '-> log
                           '------'--> before its first file

Retention removes log files without pending messages, so a pending unit here is a lost message.
Enqueued timers are pending in the timer log, see `pointers`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from duemq_common.topics import PENDING_TOPICS, TIMER_TOPIC
from spark_reconciliation.arrays import Numbers
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.non_record_rows import removed_rows
from spark_reconciliation.scan.planning import LogPlan, ScanSegment
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.store_part import StorePart
from spark_reconciliation.scan.store_state import AHEAD, Progress
from spark_reconciliation.scan.unit_tables import queue_segments, read_units


def removed_segments(root: Root, plan: LogPlan) -> list[ScanSegment]:
    """Return the files of queues whose units may point before the log."""
    if not plan.min:
        return []
    return queue_segments(root, plan.end, topics=frozenset(PENDING_TOPICS))[0]


def removed_units(
    segment: ScanSegment, progress: Progress, part: StorePart | None = None
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the log offsets of removed records: of pending ones, and of settled ones.

    A unit that the timers have enqueued or own counts as settled here.

    Args:
        part: Part of the store that is read; messages that it has counted are left out.
    """
    for values in read_units("consume_queue", segment):
        places = values["phys_offset"]
        is_removed = places < progress.log_min
        if part is not None:
            is_removed &= ~part.is_counted(places)
        here = np.flatnonzero(is_removed)
        if not here.size:
            continue
        places, numbers = places[here], values["queue_offset"][here]
        if segment.topic == TIMER_TOPIC:
            pending = (numbers >= progress.enqueued_to) & (progress.read_ms is not None)
        else:
            due_ms = values["tags_code"][here]
            pending = progress.of_level(segment.queue_id, numbers, due_ms, places) == AHEAD
            for owned_range in progress.owned.get(segment.queue_id, ()):
                if owned_range.in_checkpoint:
                    pending &= (numbers < owned_range.first) | (numbers >= owned_range.end)
        yield places[pending], places[~pending]


def read_removed(
    schema: pa.Schema,
    segment: ScanSegment,
    progress: Progress,
    roles: frozenset[int],
    part: StorePart | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `messages` about units that point before the log; see `removed_units`."""
    for pending, settled in removed_units(segment, progress, part):
        for offsets, role in ((pending, Role.REMOVED_PENDING), (settled, Role.REMOVED_SETTLED)):
            if offsets.size and role in roles:
                yield removed_rows(schema, progress.number, offsets, role)
