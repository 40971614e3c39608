"""Encoder of the records of the revive topic.

entries of one topic, group and broker name --numbers--> kernel --> rows of the batch

Python encodes the entries that the kernel does not support: long names, names with separators of
properties, suspended checkpoints, and due times with too many digits.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from duemq.net import wire_json
from duemq.pop.checkpoints import LEAD_MS, Acknowledgement, Entry, PopCheckpoint
from duemq.pop.kernels.revive_records import (
    ACK,
    BATCH_ACK,
    CHECKPOINT,
    COUNT,
    DISTANCES,
    DUE_MS,
    INVISIBLE_MS,
    NAMED,
    NOTHING,
    NUMBER_BYTES_MAX,
    OFFSETS,
    POP_MS,
    QUEUE,
    REVIVE_MS,
    START,
    UNIQUE_END,
    UNIQUE_START,
    Output,
    Texts,
    put_records,
)
from duemq.pop.names import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG
from duemq.registry.managers import Identity
from duemq_common.text import java_hash
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import entry
from message_store.log.batch import PutBatch
from message_store.log.properties import ENTRY_END, NAME_END, encode_properties

if TYPE_CHECKING:
    Numbers = array[int]
Names = tuple[str, str, str]
"""Topic, group, broker name."""
Part = tuple[bytes, int]
"""Literal, and the code of the value that follows it (`duemq.pop.kernels.revive_records`)."""
TEXTS_MAX: Final = 1_024  # cached texts
NAME_CHARS_MAX: Final = 1_024  # per name; records with longer names are encoded in Python
DUE_MS_END: Final = 10**18  # a later time has too many digits for a timer
TAGS: Final = (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)


class ReviveRecords:
    """Encoder of the records that one broker puts into the revive topic."""

    def __init__(self, identity: Identity, topic_index: int) -> None:
        self._identity, self._topic_index = identity, topic_index
        self._texts: dict[Names, Texts | None] = {}
        self._tags_hashes = np.array([java_hash(tag) for tag in TAGS], np.int64)
        blank = PutBatch(1)
        self._add_one(blank, 0, b"", b"", 0)
        self._blank = blank.rows
        self._put_records: Callable[..., int] | None = None

    def add(
        self, batch: PutBatch, entries: Sequence[Entry], now_ms: int, *, compiled: bool
    ) -> None:
        """Add the record of each entry to a batch.

        Args:
            compiled: Whether the kernel may be used.
        """
        if not compiled:
            self._add_each(batch, entries, now_ms)
            return
        for names, group in groupby(entries, _names_of):
            run = list(group)
            texts = self._texts_of(names)
            if texts is None or not self._add_compiled(batch, run, texts, now_ms):
                self._add_each(batch, run, now_ms)

    def _add_each(self, batch: PutBatch, entries: Sequence[Entry], now_ms: int) -> None:
        for queue_id, record in entries:
            properties = encode_properties(record.properties())
            self._add_one(batch, queue_id, record.body(), properties, now_ms)

    def _add_one(
        self, batch: PutBatch, queue_id: int, body: bytes, properties: bytes, now_ms: int
    ) -> None:
        host = self._identity.host
        batch.add(
            topic_index=self._topic_index,
            queue_id=queue_id,
            body=body,
            properties=properties,
            born_ms=now_ms,
            born_host=host,
            store_host=host,
        )

    def _add_compiled(
        self, batch: PutBatch, entries: Sequence[Entry], texts: Texts, now_ms: int
    ) -> bool:
        """Add records by the kernel; return False, and add none, if one of them needs Python."""
        count, numbers, offsets = len(entries), array("q"), array("q")
        for queue_id, record in entries:
            if not _add_numbers(queue_id, record, numbers, offsets):
                return False
        digits = (len(offsets) + count * texts.values.size) * (NUMBER_BYTES_MAX + 1)
        batch.reserve(count, count * texts.literals.size + digits)
        self._blank["born_ms"] = now_ms
        arguments = (
            np.array(numbers),
            np.array(offsets),
            texts,
            batch.staging_len,
            Output(batch.rows[batch.count :], batch.staging, self._blank, self._tags_hashes),
        )
        if self._put_records is None:
            find: Callable[..., Callable[..., int]] = entry
            self._put_records = find(put_records, *arguments)
        batch.staging_len = self._put_records(*arguments)
        batch.count += count
        return True

    def _texts_of(self, names: Names) -> Texts | None:
        """Return the texts of records with these names; None if the records need Python."""
        if names not in self._texts:
            if max(map(len, names)) > NAME_CHARS_MAX:
                return None
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
            self._texts[names] = texts_of(*names)
        return self._texts[names]


def _names_of(entry: Entry) -> Names:
    record = entry[1]
    return record.topic, record.group, record.broker_name


def _add_numbers(
    queue_id: int, record: PopCheckpoint | Acknowledgement, numbers: Numbers, offsets: Numbers
) -> bool:
    """Append the numbers of a record to `numbers`, in column order, and its offsets to `offsets`.

    Returns:
        Whether the kernel can encode the record.
    """
    offsets.extend(record.offsets)
    count, start, pop_ms = len(record.offsets), record.start_offset, record.pop_ms
    if isinstance(record, PopCheckpoint):
        revive_ms = pop_ms + record.invisible_ms
        due_ms = revive_ms - LEAD_MS
        numbers.extend(
            (
                CHECKPOINT,
                queue_id,
                record.queue_id,
                start,
                pop_ms,
                record.invisible_ms,
                revive_ms,
                due_ms,
                start,
                count,
                len(offsets),
            )
        )
        return due_ms < DUE_MS_END and not record.suspended
    kind, named = (ACK, record.offsets[0]) if count == 1 else (BATCH_ACK, -1)
    numbers.extend(
        (
            kind,
            queue_id,
            record.queue_id,
            start,
            pop_ms,
            0,
            0,
            record.due_ms,
            named,
            count,
            len(offsets),
        )
    )
    return record.due_ms < DUE_MS_END


def texts_of(topic: str, group: str, broker_name: str) -> Texts | None:
    """Return the texts of records with these names.

    Returns:
        None if a name contains a separator of properties or a lone surrogate.
    """
    names = topic, group, broker_name
    if any(separator in name for name in names for separator in (NAME_END, ENTRY_END)):
        return None
    try:
        raw_topic, raw_group, raw_broker = (name.encode() for name in names)
        json_topic, json_group, json_broker = map(wire_json.encode, names)
    except UnicodeEncodeError:
        return None
    broker_and_group = b'"bn":%b,"c":%b' % (json_broker, json_group)
    end_of_ack: list[Part] = [
        (b"," + broker_and_group + b',"pt":', POP_MS),
        (b',"q":', QUEUE),
        (b',"so":', START),
        (b',"t":%b}' % json_topic, NOTHING),
    ]
    bodies: dict[int, list[Part]] = {
        CHECKPOINT: [
            (b'{"bm":0,' + broker_and_group + b',"d":[', DISTANCES),
            (b'],"it":', INVISIBLE_MS),
            (b',"n":', COUNT),
            (b',"pt":', POP_MS),
            (b',"q":', QUEUE),
            (b',"reviveTime":', REVIVE_MS),
            (b',"ro":0,"so":', START),
            (b',"t":%b}' % json_topic, NOTHING),
        ],
        ACK: [(b'{"ao":', NAMED), *end_of_ack],
        BATCH_ACK: [
            (b'{"ao":-1,"aol":[', OFFSETS),
            (b"]" + end_of_ack[0][0], POP_MS),
            *end_of_ack[1:],
        ],
    }
    texts: list[list[Part]] = []
    for kind, tag in enumerate(TAGS):
        last = CHECKPOINT_TAG if kind == CHECKPOINT else ACK_TAG
        texts += [
            bodies[kind],
            [
                (b"TAGS\x01%b\x02UNIQ_KEY\x01" % tag.encode(), UNIQUE_START),
                (raw_topic + b"@", QUEUE),
                (b"@", NAMED),
                (b"@" + raw_group + b"@", POP_MS),
                (b"@%b@%b" % (raw_broker, last.encode()), UNIQUE_END),
                (b"\x02TIMER_DELIVER_MS\x01", DUE_MS),
                (b"\x02", NOTHING),
            ],
        ]
    return _joined(texts)


def _joined(texts: list[list[Part]]) -> Texts:
    parts = [part for text in texts for part in text]
    literals: Bytes = np.frombuffer(b"".join(literal for literal, _ in parts), np.uint8).copy()
    return Texts(
        literals,
        np.cumsum([len(literal) for literal, _ in parts], dtype=np.int64),
        np.array([value for _, value in parts], np.int64),
        np.cumsum([0, *map(len, texts)], dtype=np.int64),
    )
