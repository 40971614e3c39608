"""Sends decoded in Python: validation, new topics, retries, client batches, half messages.

    fill       validates a send and adds its rows without a wait, so that the messages of a
               connection stay in order
    MustWait   reports that a topic must be created first, or that a large batch is decoded in
               steps; the caller then calls `fill` again
    response   waits until a new topic is registered with the name servers

SendMessageProcessor, AbstractSendMessageProcessor.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from delayed_delivery.later_copies import (
    HALF_BYTES_MAX,
    SENT_BYTES_MAX,
    SENT_RETRY_BYTES_MAX,
    fault_of,
)
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess, check_marker
from duemq.registry.groups import GroupManager
from duemq.registry.internal_topics import check_writable
from duemq.registry.topics import TopicManager
from duemq.send.batch_body import batch_entries, count_entries
from duemq.send.layout import ROWS_MAX
from duemq.send.responses import DecodedSend, MustWait
from duemq.send.send_header import (
    PRIORITY,
    SendHeader,
    client_entries,
    may_have_priority,
    parse_send,
    priority_of,
    property_bytes,
)
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Peer, Request
from duemq_common.text import GROUP_BYTES_MAX, TOPIC_BYTES_MAX, name_fault
from duemq_common.topics import DLQ_PREFIX, PERM_READ, PERM_WRITE, RETRY_PREFIX
from duemq_common.unique_ids import UniqueIds
from message_store import layout
from message_store.log.batch import TIMER_STALE_NAMES, PutBatch
from message_store.queues.topic_table import TopicTable

log = logging.getLogger(__name__)
VERSION_3_4_9 = 121  # first client version whose maxReconsumeTimes is used
DLQ_PERM = PERM_READ | PERM_WRITE
ENTRIES_OF_STEP: Final = 256  # messages of a batch decoded without a pause
STALE_NAMES: Final = frozenset({"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", *TIMER_STALE_NAMES})
STALE_FLAGS: Final = layout.PROP_TIMER_OUT | layout.PROP_REAL_TOPIC | layout.PROP_TIMER_STALE


class SendRules(Struct, frozen=True, kw_only=True):
    """Configuration of sends.

    Attributes:
        suffix: Encoded properties that the broker appends to every message.
        store_host: Address bytes and port of the broker.
        body_bytes_max: Maximum size of a body in bytes (`maxMessageSize`).
        start_accept_ms: Time in ms since the epoch from which sends are accepted.
        reject_transactions: Whether transactional messages are refused.
    """

    suffix: bytes
    store_host: tuple[bytes, int]
    body_bytes_max: int = 4 << 20
    start_accept_ms: int = 0
    reject_transactions: bool = False


class _Send(Struct, frozen=True):
    """Validated send whose rows are not added yet."""

    header: SendHeader
    request: Request
    queue_id: int
    born_host: tuple[bytes, int]
    rules: SendRules


class SendProcessor:
    """Validator of decoded send requests, which it adds to batches.

    Args:
        table: Topic table of the store; `topics` maintains its routing columns.
        half: Converts a row to a half message: duemq.transactions.half_messages.to_half_message.
        run_hooks: Runs the put hooks on a batch.
        group_locked: Returns whether a consumer group has a queue lock, as orderly consumers do.
        rules: Returns the current configuration; called for each send.
        records: Access check of the timers that messages cancel; None: no accounts.
        seed: Seed of the random queue choice; None: random.
    """

    def __init__(
        self,
        table: TopicTable,
        topics: TopicManager,
        groups: GroupManager,
        *,
        half: Callable[[PutBatch, int, TopicTable], None],
        run_hooks: Callable[[PutBatch], None],
        group_locked: Callable[[str], bool],
        rules: Callable[[], SendRules],
        clock: Clock,
        records: RecordAccess | None = None,
        seed: int | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._table, self._topics, self._groups = table, topics, groups
        self._half, self._group_locked = half, group_locked
        self._run_hooks = run_hooks
        self._rules, self._clock = rules, clock
        self._random = random.Random(seed)
        self._ids = UniqueIds(rules().store_host[0], clock)
        self._registrations: dict[str, asyncio.Task[None]] = {}
        self._accepting = False
        self._one_expansion = asyncio.Lock()
        self._expanded: WeakKeyDictionary[Peer, tuple[object, PutBatch]] = WeakKeyDictionary()

    def accepts(self) -> bool:
        """Return whether the accept time has passed; once true, the result stays true."""
        if not self._accepting:
            self._accepting = self._clock.now_ms() >= self._rules().start_accept_ms
        return self._accepting

    def fill(self, request: Request, born_host: tuple[bytes, int], batch: PutBatch) -> DecodedSend:
        """Add the request's messages to `batch`.

        Raises:
            RequestError: The send is refused, with Apache's code.
            MustWait: A topic must be created, or a large batch decoded, first.
        """
        header, rules = parse_send(request), self._rules()
        self._check_time(rules)
        self._check_topic(header)
        queue_id = self._queue_of(header)
        _check_body(request.body, rules.body_bytes_max)
        send = _Send(header, request, queue_id, born_host, rules)
        filled = self._fill_batch(send, batch) if header.batch else self._fill_one(send, batch)
        registration = self._registrations.get(header.topic)
        if registration is not None:
            filled.before_response = partial(_wait_for, registration)
        return filled

    def _check_time(self, rules: SendRules) -> None:
        if not self.accepts():
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker accepts messages from {rules.start_accept_ms} ms since the epoch "
                "(startAcceptSendRequestTimeStamp)",
            )

    # Topics and queues.

    def _check_topic(self, header: SendHeader) -> None:
        name = header.topic
        derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        fault = name_fault(name, bytes_max=GROUP_BYTES_MAX if derived else TOPIC_BYTES_MAX)
        if fault is not None:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"the specified topic: {fault}")
        check_writable(name)
        topic = self._topics.find(name)
        if topic is None:
            raise MustWait(partial(self._create, header))
        if self._is_closed(name) or not topic.perm & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"sending message to topic [{name}] is forbidden"
            )

    def _is_closed(self, name: str) -> bool:
        index = self._table.find(name)
        return index >= 0 and bool(self._table.arrays.topics[index]["closed"])

    async def _create(self, header: SendHeader) -> None:
        """Create the topic of a send, and start its registration with the name servers.

        Raises:
            RequestError: The topic may not be created.
        """
        name = header.topic
        topic = await self._topics.create_for_send(
            name,
            default_topic=header.default_topic,
            default_queues=header.default_queues,
            unit_mode=header.unit_mode,
            announce=False,
        )
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        if name not in self._registrations:
            task = asyncio.create_task(
                self._topics.announce([topic]), name=f"register topic {name}"
            )
            self._registrations[name] = task
            task.add_done_callback(partial(self._registration_done, name))

    def _registration_done(self, name: str, task: asyncio.Task[None]) -> None:
        self._registrations.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            log.warning("name servers did not register topic %s: %s", name, task.exception())

    async def _create_dlq(self, name: str) -> None:
        await self._topics.ensure(name, queues=1, perm=DLQ_PERM)

    def _queue_of(self, header: SendHeader) -> int:
        topic = self._topics.find(header.topic)
        assert topic is not None
        if header.queue_id >= max(topic.write_queues, topic.read_queues):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal: topic {topic.name} has "
                f"{topic.write_queues} write queues and {topic.read_queues} read queues; "
                f"producer group {header.group}",
            )
        if header.queue_id >= 0:
            return header.queue_id
        return self._random.randrange(max(topic.write_queues, 1))

    def _write_queues(self, name: str) -> int:
        topic = self._topics.find(name)
        return max(topic.write_queues, 1) if topic is not None else 1

    # One message.

    def _fill_one(self, send: _Send, batch: PutBatch) -> DecodedSend:
        entries = client_entries(send.header.properties)
        by_name = dict(entries)
        if "UNIQ_KEY" not in by_name:
            by_name["UNIQ_KEY"] = self._ids.next_id()
            entries.append(("UNIQ_KEY", by_name["UNIQ_KEY"]))
        topic, queue_id = send.header.topic, send.queue_id
        if topic.startswith(RETRY_PREFIX) and self._is_dead(send):
            topic, queue_id = DLQ_PREFIX + topic.removeprefix(RETRY_PREFIX), 0
            entries.append(("DELAY", "-1"))
            if self._topics.find(topic) is None:
                raise MustWait(partial(self._create_dlq, topic))
        derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        if (priority := priority_of(by_name)) >= 0:
            if not may_have_priority(by_name):
                entries = [entry for entry in entries if entry[0] != PRIORITY]
            elif not derived:  # a delayed message keeps the queue until it is due
                queue_id = min(priority, self._write_queues(topic) - 1)
        properties = property_bytes(entries, send.rules.suffix)
        _check_properties(properties, SENT_RETRY_BYTES_MAX if derived else SENT_BYTES_MAX)
        row = _add(
            send,
            batch,
            topic_index=self._table.find(topic),
            queue_id=queue_id,
            body=send.request.body,
            properties=properties,
            flag=send.header.flag,
        )
        self._check_marker(send, batch, row)
        is_half = by_name.get("TRAN_MSG", "").lower() == "true"
        if is_half and not self._is_delayed_retry(send.header, batch, row):
            self._make_half(send, batch, row)
        shown_id = queue_id if topic == send.header.topic else send.queue_id
        return DecodedSend(row, 1, shown_id, by_name["UNIQ_KEY"])

    def _check_marker(self, send: _Send, batch: PutBatch, row: int) -> None:
        """Check the permission for the timer that a message cancels, if it cancels one."""
        if batch.rows[row]["prop_flags"] & layout.PROP_TIMER_DEL:
            topic, properties = send.header.topic, batch.properties(row)
            check_marker(self._records, send.request, topic, properties)

    @staticmethod
    def _is_delayed_retry(header: SendHeader, batch: PutBatch, row: int) -> bool:
        return header.reconsume_times > 0 and int(batch.rows[row]["delay_level"]) > 0

    def _make_half(self, send: _Send, batch: PutBatch, row: int) -> None:
        if send.rules.reject_transactions:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "the broker refuses transactional messages (rejectTransactionMessage)",
            )
        delayed = _is_delayed(batch.rows[row])
        topic_index, queue_id = int(batch.rows[row]["topic_index"]), send.queue_id
        self._half(batch, row, self._table)
        properties = batch.property_text(row)
        _check_properties(properties, HALF_BYTES_MAX)
        if delayed:
            self._check_commit(send, topic_index, queue_id, properties)

    def _check_commit(
        self, send: _Send, topic_index: int, queue_id: int, properties: bytes
    ) -> None:
        """Check that the put hooks accept the committed message.

        A refusal at commit would not be reported to the client.

        Raises:
            RequestError: A hook refuses the delay; code and remark are those of a normal send.
        """
        probe = PutBatch(1, len(send.request.body) + len(properties))
        row = _add(
            send,
            probe,
            topic_index=topic_index,
            queue_id=queue_id,
            body=send.request.body,
            properties=properties,
            flag=send.header.flag,
        )
        probe.rows[row]["sys_flag"] &= ~layout.SYS_TRANSACTION_MASK
        self._run_hooks(probe)
        status = int(probe.rows[row]["status"])
        if status:
            raise RequestError(status, probe.remarks.get(row, "the delay is refused"))

    def _is_dead(self, send: _Send) -> bool:
        """Return whether a retry message must go to the dead letter topic.

        A group with queue locks consumes in order, so its retries are dead letters at once.

        Raises:
            RequestError: The consumer group is unknown.
        """
        name = send.header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find_or_create(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}",
            )
        times_max = group.retry_times_max
        requested_max = send.header.reconsume_times_max
        if send.request.version >= VERSION_3_4_9 and requested_max is not None:
            times_max = requested_max
        return send.header.reconsume_times > times_max or self._group_locked(name)

    # A batch.

    def _fill_batch(self, send: _Send, batch: PutBatch) -> DecodedSend:
        if send.header.topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a retry topic accepts no batches")
        first, request = batch.count, send.request
        expanded = self._expanded.pop(request.peer, None) if request.peer is not None else None
        if expanded is not None and expanded[0] == (request.fields, request.body):
            batch.extend(expanded[1])
            batch.rows["topic_index"][first : batch.count] = self._table.find(send.header.topic)
            batch.rows["queue_id"][first : batch.count] = send.queue_id
        elif count_entries(request.body) > ENTRIES_OF_STEP and request.peer is not None:
            raise MustWait(partial(self._expand_in_steps, send, request.peer))
        else:
            for _ in self._expand(send, batch):
                pass
        unique_id = dict(client_entries(send.header.properties)).get("UNIQ_KEY")
        count = batch.count - first
        batch.together.append((first, count))
        return DecodedSend(first, count, send.queue_id, unique_id, recallable=False)

    async def _expand_in_steps(self, send: _Send, peer: Peer) -> None:
        """Decode a large batch for the next `fill`, in steps on the event loop.

        One batch of all connections is decoded at a time, so that a turn of the loop has one step.
        """
        async with self._one_expansion:
            batch = PutBatch(ROWS_MAX, len(send.request.body))
            for number, _ in enumerate(self._expand(send, batch), 1):
                if number % ENTRIES_OF_STEP == 0:
                    await asyncio.sleep(0)
                    if peer.closed:
                        return
        self._expanded[peer] = ((send.request.fields, send.request.body), batch)

    def _expand(self, send: _Send, batch: PutBatch) -> Iterator[None]:
        """Add the messages of a client's batch to `batch`, one at a time."""
        shared = property_bytes(client_entries(send.header.properties), send.rules.suffix)
        shared_bytes = len(shared) - len(send.rules.suffix)
        topic_index, expanded_bytes = self._table.find(send.header.topic), 0
        for entry in batch_entries(send.request.body):
            expanded_bytes += len(entry.body) + len(entry.properties) + shared_bytes
            _check_expanded(expanded_bytes, send.rules.body_bytes_max)
            properties = entry.properties + shared
            _check_properties(properties, SENT_BYTES_MAX)
            row = _add(
                send,
                batch,
                topic_index=topic_index,
                queue_id=send.queue_id,
                body=entry.body,
                properties=properties,
                flag=entry.flag,
            )
            _check_batch_row(batch, row)
            self._check_marker(send, batch, row)
            yield


def _add(
    send: _Send,
    batch: PutBatch,
    *,
    topic_index: int,
    queue_id: int,
    body: bytes | memoryview,
    properties: bytes,
    flag: int,
) -> int:
    """Add one row; return its index."""
    return batch.add(
        topic_index=topic_index,
        queue_id=queue_id,
        body=body,
        properties=properties,
        born_ms=send.header.born_ms,
        born_host=send.born_host,
        store_host=send.rules.store_host,
        flag=flag,
        sys_flag=send.header.sys_flag,
        reconsume_times=send.header.reconsume_times,
    )


def _check_properties(properties: bytes, bytes_max: int) -> None:
    """Check that a property text leaves room for the later copies of its message.

    Raises:
        RequestError: It does not.
    """
    fault = fault_of(len(properties), bytes_max)
    if fault:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, fault)


def _is_delayed(row: layout.Row) -> bool:
    """Return whether a message has a delay property, valid or not."""
    return bool(row["delay_level"] != 0 or row["timer_kind"] != layout.TIMER_NONE)


def _check_body(body: bytes, bytes_max: int) -> None:
    if not body:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the message has no body")
    if len(body) > bytes_max:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: its body has {len(body)} bytes; "
            f"maxMessageSize is {bytes_max}",
        )


def _check_expanded(expanded_bytes: int, bytes_max: int) -> None:
    """Refuse a batch that exceeds maxMessageSize once each message has the batch's properties.

    Source: 4.9.7 CommitLog.MessageExtBatchEncoder, "message size exceeded"
    """
    if expanded_bytes > bytes_max:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the batch is illegal: with the batch's properties added to each message, it exceeds "
            f"maxMessageSize ({bytes_max} bytes); send smaller batches",
        )


def _check_batch_row(batch: PutBatch, index: int) -> None:
    row = batch.rows[index]
    if row["delay_level"] > 0 or row["prop_flags"] & layout.PROP_TRAN_MSG:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "a batch cannot contain messages with a delay level or transactional messages",
        )
    if row["timer_kind"] != layout.TIMER_NONE and row["prop_flags"] & STALE_FLAGS:
        # The put hook does the same for one message, but for all of a batch in one turn.
        properties = batch.properties(index)
        kept = {name: value for name, value in properties.items() if name not in STALE_NAMES}
        batch.set_properties(index, kept)


async def _wait_for(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
