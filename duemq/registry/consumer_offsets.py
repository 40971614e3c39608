"""Offsets of consumer groups by topic and queue, stored in consumerOffset.json.

    (topic, group) -> {queue id: next offset to consume}

The file never gets ahead of the durable log: it is written once the log is durable up to its end at
the time of the snapshot. At startup, an offset after the end of its queue is set to that end, so
that messages stored later are not skipped. Apache does neither.

If the log has lost its end since, offsets are set to the end of their queue at that time
(`follow`): messages stored later get the same queue offsets as the lost ones. Offsets of
transactions and revivals are removed, since they depend on records of other queues, which are read
again.

The member `pops` of the file, which Apache ignores, is the log offset up to which the table
includes all pops; later pops are read from the log (`duemq.pop.pop_recovery`). The member `crc32`
is a checksum over `pops`, the offsets of internal groups, the progress of transactions and of
revivals, and `lastRecord`, the last record of the log at that time. If another program has changed
them, they are derived from the log; if the log has another record there, the file belongs to
another store, and no offset is used (`prove`).

A server-side reset is pending until the consumer's next pull: until then queries return it, and the
callers of `commit` ignore the consumer's commits. Pull offsets and pending resets are in memory
only. The number of pairs is limited, and a pair's offsets beyond `FREE_QUEUES` count in the memory
budget of the connections, since a client may invent queue ids. Source: ConsumerOffsetManager
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import MappingProxyType

from delayed_delivery.steps import collected
from duemq.net.memory import MemoryBudget
from duemq.registry.config_file import ConfigFile, JsonObject, SavedTable
from duemq.registry.internal_topics import may_read
from duemq.registry.offset_table import (
    CRC,
    FREE_QUEUES,
    LAST_RECORD,
    OFFSET_BYTES,
    POPS,
    Content,
    OffsetRows,
    PopState,
    Table,
    charged_bytes,
    checksum,
    decode,
    key_of,
    queues_of,
    topics_of_groups,
)
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from duemq_common.topics import INTERNAL_GROUP_PREFIX
from message_store.queues.topic_table import QUEUES_MAX
from message_store.recovery.log_identity import NO_RECORD
from message_store.store import MessageStore

log = logging.getLogger(__name__)
FILE_NAME = "consumerOffset.json"
PAIRS_MAX = 1_000_000
RESTARTED_MAX = 1_000  # deleted topics, the newest ones, whose groups are reset
PAIRS_PER_TURN = 256  # encoded per event loop turn
NOTICES_MAX = 10
POPS_SPAN_BYTES = 64 << 20  # limit of the log that a start searches for pops
COMMITS_PER_VERSION = 500  # consumerOffsetUpdateVersionStep
NO_OFFSETS: Mapping[int, int] = MappingProxyType({})


class OffsetManager(SavedTable):
    """Manager of the offsets of all consumer groups of one broker.

    Args:
        store: Store whose log must be durable before the file is written; None: no log.
        pairs_max: Maximum number of (topic, group) pairs.
        memory: Memory budget.
    Attributes:
        pops: Returns the state of pops in the table; None: unknown, the table is Apache's.
    """

    def __init__(
        self,
        file: ConfigFile,
        clock: Clock,
        store: MessageStore | None = None,
        *,
        pairs_max: int = PAIRS_MAX,
        memory: MemoryBudget | None = None,
    ) -> None:
        super().__init__(file)
        self._memory = memory or MemoryBudget()
        self._clock, self._store, self._pairs_max = clock, store, pairs_max
        self._table: Table = {}
        self._rows = OffsetRows(self._table)
        self._pulled: Table = {}
        self._resets: Table = {}
        self._restarted: dict[str, None] = {}  # deleted topics, whose groups are reset
        self._extra: dict[str, object] = {}
        self._commits = 0
        self.version = DataVersion()
        self.pops: Callable[[], PopState | None] = lambda: None
        self._written_before = 0  # `PopState.before` in the file
        self._is_proved = True  # no other program has changed the progress of internal groups
        self._last_record = NO_RECORD  # in the file that was loaded

    # -- file ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load consumerOffset.json.

        Raises:
            CorruptStore: Neither the file nor its backup can be used.
        """
        self.version = DataVersion(0, self._clock.now_ms())
        content = self._file.load(decode)
        self._dirty = content is None
        self._use_content(content or Content())

    def replace_by(self, data: JsonObject) -> None:
        """Replace the offsets by those of a master, in the form of consumerOffset.json.

        Raises:
            ValueError: The table is invalid.
        """
        self._use_content(decode(data))
        self.remove_deleted()
        self._dirty = True

    def _use_content(self, content: Content) -> None:
        self._memory.free(sum(map(charged_bytes, self._table.values())))
        pops, self._extra, self._table = content.pops, content.extra, content.table
        self._rows = OffsetRows(self._table)
        self._is_proved, self._last_record = content.is_proved, content.last_record
        self._memory.reserve(sum(map(charged_bytes, self._table.values())), is_checked=True)
        self.version = content.version or self.version
        self.pops = lambda: pops
        self._written_before = 0 if pops is None else pops.before

    def prove(self, groups: Collection[str]) -> None:
        """Derive the progress of internal groups from the log if another program has changed it.

        If the file was written for another store, the offsets of all groups are removed. A record
        that the log has lost, or that retention has removed, proves nothing: see `follow`.

        Args:
            groups: Groups whose queues are read again from their start.
        """
        if not self._is_proved:
            fault = "another program has changed the progress of transactions or of popped messages"
        elif self._is_of_another_store():
            fault = "it was written for another store: no offset is used"
            groups = {group for _, group in self._table}
        else:
            return
        log.error("%s: %s; progress is derived from the log", FILE_NAME, fault)
        for group in groups:
            self.remove_group(group)
        self.pops = lambda: PopState(0, {})
        self._is_proved = self._dirty = True

    def _is_of_another_store(self) -> bool:
        """Return whether the log has another record than the file at the offset of its last one."""
        store, last = self._store, self._last_record
        if store is None or not store.min_offset <= last.offset < self._unchanged_end(store):
            return False
        return store.record_identity(last.offset) != last

    @staticmethod
    def _unchanged_end(store: MessageStore) -> int:
        """Return the log offset up to which the log has not changed since the file was written."""
        return store.unchanged_end(store.truncations.followed(FILE_NAME))

    def fit(self, bounds: Callable[[str, int], tuple[int, int]]) -> int:
        """Set offsets after the end of their queue to that end; return how many.

        Args:
            bounds: Returns the first offset and the end offset of a queue.
        """
        count = 0
        for (topic, group), queues in self._table.items():
            for queue_id, offset in queues.items():
                _, end = bounds(topic, queue_id)
                if offset > end:
                    count += 1
                    if count <= NOTICES_MAX:
                        log.warning(
                            "group %s had consumed queue %d of %s up to offset %d, but the queue "
                            "ends at %d: the group continues there",
                            group,
                            queue_id,
                            topic,
                            offset,
                            end,
                        )
                    queues[queue_id] = end
                    self._rows.change((topic, group))
        if count > NOTICES_MAX:
            log.warning("%d more offsets were set to the end of their queue", count - NOTICES_MAX)
        self._dirty |= count > 0
        return count

    def remove_deleted(self) -> None:
        """Reset the offsets of topics that were deleted after the table was written.

        The queues of a topic that was created again with the same name begin at 0.
        """
        store, last = self._store, self._last_record.offset
        if store is None or last < 0:  # the table is Apache's, or the log was empty
            return
        for topic in {topic for topic, _ in self._table}:
            if store.queues.deletions.before(topic) > last:
                self.restart_topic(topic)

    def follow(self, store: MessageStore, groups_read_again: Collection[str]) -> None:
        """Adjust the offsets to a log that has lost its end since the file was written.

        The log was truncated, or it is a copy that is older than the file.

        Args:
            groups_read_again: Groups whose offsets are removed.
        Raises:
            OSError: The write failed; the next start retries.
        """
        truncations, end = store.truncations, self._unchanged_end(store)
        is_older = self._last_record.offset >= end
        if not is_older and truncations.followed(FILE_NAME) == truncations.generation:
            return
        if pops := self.pops():
            fitted = pops._replace(before=min(pops.before, end))
            self.pops = lambda: fitted
        self.fit(lambda topic, queue_id: (0, store.queue_end_before(topic, queue_id, end)))
        for group in groups_read_again:
            self.remove_group(group)
        for _ in ("the file", "its backup"):
            self._dirty = True
            self.persist()
        truncations.follow(FILE_NAME)

    def persist(self) -> None:
        """Write the file if the offsets have changed; sync the log first.

        Raises:
            OSError: The sync or the write failed.
        """
        self._request_pops_write()
        if self._dirty and self._store is not None:
            self._store.flush()
        super().persist()

    async def save(self) -> None:
        """Write a snapshot of the offsets after the log is on disk up to its current end.

        If the log is not synced in time, the next call retries.

        Raises:
            OSError: The write failed.
        """
        self._request_pops_write()
        if not self._dirty:
            return
        self._dirty = False
        try:
            value = await self.encoded()
            store = self._store
            if store is None or await store.wait_durable(store.max_offset):
                await self._file.save(value)
            else:
                self._dirty = True
        except BaseException:
            self._dirty = True
            raise

    def _request_pops_write(self) -> None:
        """Request a write of the file if a start would search too much of the log for pops."""
        pops = self.pops()
        if pops is not None and pops.before - self._written_before > POPS_SPAN_BYTES:
            self._dirty = True

    async def encoded(self) -> dict[str, object]:
        """Return the content of `to_json`, encoded in short turns with other tasks in between.

        Offsets of different turns may be from different times; none is from before this call.
        """
        pops, rows = self.pops(), self._rows
        for _ in range(0, rows.changed_count, PAIRS_PER_TURN):
            rows.encode(PAIRS_PER_TURN)
            await asyncio.sleep(0)
        if rows is not self._rows:  # the table was replaced meanwhile
            rows = self._rows
            rows.encode(rows.changed_count)
        rows.encode_internal()
        return self._file_content(rows.topics_text(), rows.text(), pops, rows.internal())

    def to_json(self) -> dict[str, object]:
        """Return the immutable content of consumerOffset.json."""
        pops, offsets = self.pops(), self.offset_table()  # `pops` also commits confirmed pops
        return self._file_content(topics_of_groups(self._table), offsets, pops, offsets)

    def _file_content(
        self,
        topics_of: object,
        offsets: object,
        pops: PopState | None,
        internal: Mapping[str, Mapping[int, int]],
    ) -> dict[str, object]:
        self._written_before = 0 if pops is None else pops.before
        own: dict[str, object] = {} if pops is None else {POPS: pops._asdict()}
        store = self._store
        last = NO_RECORD if store is None else store.record_identity(store.last_record)
        own |= {LAST_RECORD: list(last), CRC: checksum(internal, pops, last)}
        return {
            "dataVersion": self.version.to_json(),
            **self._extra,
            **own,
            "groupTopicMap": topics_of,
            "offsetTable": offsets,
        }

    def offset_table(self) -> dict[str, dict[int, int]]:
        """Return a copy of all offsets as `{"topic@group": {queue: offset}}`."""
        return {key_of(pair): dict(queues) for pair, queues in self._table.items()}

    # -- offsets ------------------------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to consume, or that of a pending reset; None if unknown."""
        if self._resets:
            reset = self.pending_reset(group, topic, queue_id)
            if reset is not None:
                return reset
        return self._table.get((topic, group), {}).get(queue_id)

    def of_pair(self, group: str, topic: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return the next offsets to consume, as `query`, and to pull, of a group, by queue."""
        committed = self._table.get((topic, group), NO_OFFSETS)
        if self._resets and (resets := self._resets.get((topic, group))):
            committed = {**committed, **resets}
        return committed, self._pulled.get((topic, group), NO_OFFSETS)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset to consume, which may decrease.

        Raises:
            RequestError: The queue does not exist, or a limit is reached.
        """
        queues = self._table.get((topic, group))
        if queues is not None and queues.get(queue_id) == offset:
            return  # clients commit the offsets of all their queues every few seconds
        self._put(self._table, group, topic, queue_id, offset)
        self._rows.change((topic, group))
        self._dirty = True
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.version = self.version.next(self._clock.now_ms())

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset to pull, for request 208; in memory only.

        Raises:
            RequestError: The queue does not exist, or a limit is reached.
        """
        self._put(self._pulled, group, topic, queue_id, offset)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to pull; None if the group has not pulled."""
        return self._pulled.get((topic, group), {}).get(queue_id)

    def _put(self, table: Table, group: str, topic: str, queue_id: int, offset: int) -> None:
        if not 0 <= queue_id < QUEUES_MAX:
            text = f"queue {queue_id} of {topic}: queues are numbered 0 to {QUEUES_MAX - 1}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        queues = table.get((topic, group))
        is_own = group.startswith(INTERNAL_GROUP_PREFIX) and not may_read(topic)
        if queues is None:
            if len(table) >= self._pairs_max and not is_own:
                text = (
                    f"there are offsets of {len(table)} topic and group pairs; the limit is "
                    f"consumerOffsetsMax={self._pairs_max}. Delete groups, or set a higher limit"
                )
                raise RequestError(ResponseCode.SYSTEM_ERROR, text)
            queues = table[topic, group] = {}
        is_counted = len(queues) >= FREE_QUEUES and queue_id not in queues
        if is_counted and not self._memory.reserve(OFFSET_BYTES, is_checked=is_own):
            text = "too many consumer offsets for the memory that is left (remotingMemoryMax)"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        queues[queue_id] = offset

    async def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics with offsets of each group; other work runs meanwhile."""
        return topics_of_groups(await collected(list(self._table)))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics with offsets of a group, sorted."""
        return sorted(topic for topic, name in self._table if name == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups with offsets in a topic, sorted."""
        return sorted(group for name, group in self._table if name == topic)

    # -- resets -------------------------------------------------------------------------------

    def set_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group to `offset`; commits are ignored until its next pull.

        Raises:
            RequestError: The queue does not exist, or a limit is reached.
        Source: ConsumerOffsetManager.assignResetOffset
        """
        self.commit(group, topic, queue_id, offset)
        self._put(self._resets, group, topic, queue_id, offset)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset, or None."""
        if not self._resets:
            return None
        return self._resets.get((topic, group), {}).get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and remove the offset of a pending reset, or None.

        Source: ConsumerOffsetManager.queryThenEraseResetOffset
        """
        queues = self._resets.get((topic, group)) if self._resets else None
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if offset is not None and len(queues) >= FREE_QUEUES:
            self._memory.free(OFFSET_BYTES)
        if not queues:
            del self._resets[topic, group]
        return offset

    # -- cleaning -----------------------------------------------------------------------------

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of another group in one topic, if there are any.

        Raises:
            RequestError: The limit of pairs is reached.
        """
        for queue_id, offset in dict(self._table.get((topic, source), {})).items():
            self.commit(target, topic, queue_id, offset)

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets of a topic. Source: cleanOffsetByTopic"""
        self._remove([key for key in self._keys() if key[0] == topic])

    def restart_topic(self, topic: str) -> None:
        """Remove all offsets of a deleted topic, and reset its groups to 0 until their next pull.

        The consumers that are connected have the offsets of the deleted topic: if it is created
        again, they would commit them, and never get the messages before them.
        """
        queues = queues_of(topic, self._table) | queues_of(topic, self._pulled)
        self.remove_topic(topic)
        self._restarted.pop(topic, None)
        if queues:
            self._restarted[topic] = None
        if len(self._restarted) > RESTARTED_MAX:  # their consumers may never pull again
            self._forget_resets(next(iter(self._restarted)))
        with suppress(RequestError):  # a limit is reached
            for group, queue_id in queues:
                self._put(self._resets, group, topic, queue_id, 0)

    def _forget_resets(self, topic: str) -> None:
        del self._restarted[topic]
        for key in [key for key in self._resets if key[0] == topic]:
            self._memory.free(charged_bytes(self._resets.pop(key)))

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Remove the offsets of all groups in one queue."""
        for key in [key for key in self._table if key[0] == topic]:
            queues = self._table[key]
            charged = charged_bytes(queues)
            if queues.pop(queue_id, None) is not None:
                self._memory.free(charged - charged_bytes(queues))
                self._rows.change(key)
                self._dirty = True

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group. Source: removeOffset"""
        self._remove([key for key in self._keys() if key[1] == group])

    def _keys(self) -> set[tuple[str, str]]:
        return self._table.keys() | self._pulled.keys() | self._resets.keys()

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._dirty |= key in self._table
            self._rows.remove(key)
            for table in (self._table, self._pulled, self._resets):
                self._memory.free(charged_bytes(table.pop(key, {})))
