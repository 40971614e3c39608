"""Recovery of pop offsets: pops that the log has, and the table of consumer offsets lacks.

    consumerOffset.json, pops before a log offset   +   checkpoints in the log from there on
    of this store, or copied from the former master     of this store

So an acknowledged message is not popped again: neither after a kill, nor on a new master.

Acknowledgements that were stored at a time after the present show that the clock was ahead: the
table may lack this, too, and their records are due when the clock shows that time again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from duemq.pop.checkpoints import PopCheckpoint, RecordError, parse_revive_record
from duemq.pop.names import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, revive_topic
from duemq.pop.undecided_pops import UndecidedPops
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.managers import Identity
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.text import java_hash
from duemq_common.topics import TIMER_TOPIC
from message_store.log.text_search import rows_with

if TYPE_CHECKING:
    from message_store.store import MessageStore


log = logging.getLogger(__name__)
COPIED: Final = frozenset({"TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"})
"""Properties of copies that timers made."""
ACK_TAGS: Final = [java_hash(tag) for tag in (ACK_TAG, BATCH_ACK_TAG)]


def recover_pops(
    store: MessageStore, offsets: OffsetManager, undecided: UndecidedPops, identity: Identity
) -> int:
    """Commit the ends of the pops that the table of offsets lacks; return their number.

    A table without the member `pops`, such as Apache's, stays unchanged.

    Args:
        undecided: Receives the undecided checkpoints of the table, and the later ones of the log;
            also the latest time at which one of the later acknowledgements was stored.
    """
    pops, count, refused = offsets.pops(), 0, ""
    if pops is None:
        return 0
    undecided.load(pops.first_needed, pops.latest_ms)
    for checkpoint in _checkpoints(store, pops.before, identity, undecided):
        undecided.add(checkpoint)
        if (checkpoint.put_offset or 0) < store.queues.deletions.before(checkpoint.topic):
            continue  # the topic was deleted after the pop, and perhaps created again
        _, queue_end = store.queue_bounds(checkpoint.topic, checkpoint.queue_id)
        end = min(max(checkpoint.offsets) + 1, queue_end)
        committed = offsets.query(checkpoint.group, checkpoint.topic, checkpoint.queue_id)
        if end > (committed or 0):
            queue = checkpoint.group, checkpoint.topic, checkpoint.queue_id
            try:
                offsets.commit(*queue, end)
            except RequestError as error:  # the table was full at the pop, too
                refused = refused or str(error)
                continue
            # The start resets the groups of a deleted topic again; this pop has taken the reset.
            offsets.take_reset(*queue)
            count += 1
    if refused:
        log.warning("pops whose offsets are not stored are repeated: %s", refused)
    return count


def _checkpoints(
    store: MessageStore, begin: int, identity: Identity, undecided: UndecidedPops
) -> Iterator[PopCheckpoint]:
    """Yield the checkpoints that pops put into the log from an offset on.

    Copies of checkpoints that timers delivered or rolled are skipped: their pops may be older.
    """
    topic = revive_topic(identity.cluster_name)
    topic_indexes = [store.topics.add(TIMER_TOPIC), store.topics.add(topic)]
    tag, name = f"TAGS\x01{CHECKPOINT_TAG}\x02".encode(), topic.encode()
    for rows in store.scan(max(begin, store.min_offset)):
        timers = rows[np.isin(rows["topic_index"], topic_indexes)]
        stored_ms = timers["store_ms"][np.isin(timers["tags_hash"], ACK_TAGS)]
        undecided.latest_ms = max(undecided.latest_ms, int(stored_ms.max(initial=0)))
        for row in rows_with(store, rows_with(store, timers, name), tag):
            try:
                record = store.read_record(int(row["phys_offset"]))
                if COPIED.isdisjoint(record.properties) and (
                    record.properties.get("REAL_TOPIC", record.topic) == topic
                ):
                    item = parse_revive_record(record, identity.broker_name)
                    if isinstance(item, PopCheckpoint) and item.offsets:
                        yield item
            except (RecordUnreadable, RecordError, RequestError):
                continue  # the reviver reports the record
