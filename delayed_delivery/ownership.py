"""Ownership journal: records that transfer ranges of a level's queue between levels and timers.

    topic DUEMQ_MIGRATION, queue 0:   route   handover   handover ...   giveback ...   state

A transfer is in force as soon as its record is in the log. Everything else (cursors, timer units,
counts, ledgers) is a projection of the records in the order of this queue. This module defines
their format and reads them; `delayed_delivery.ownership_projection` defines their meaning. Ranges
are queue offsets of a level's queue.

    Transfer      (`handover`) the timers own a range, except units that were settled before
    Return        (`giveback`) the level owns ranges again, except units that were settled meanwhile
    Route         (`route`) new messages of a level become timers, or level messages again
    StateRecord   (`state`) the migration of a level changed its state
"""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from delayed_delivery.own_records import put_own
from delayed_delivery.quarantine import NO_HOST
from duemq_common.errors import OwnershipRefused, RecordUnreadable
from duemq_common.topics import OWNERSHIP_TOPIC
from message_store.log.record import Record
from message_store.queues.topic_table import QUEUES_MAX
from message_store.ranges import Range, joined, minus

if TYPE_CHECKING:
    from message_store.reader import StoreReader
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
OWNERSHIP_QUEUE: Final = 0
RANGES_MAX: Final = 1_000
"""Maximum ranges of one record; a step with more is divided."""
NO_END: Final = 1 << 62
READ_UNITS: Final = 1_024
NAME_CHARACTERS_MAX: Final = 4_096
CHECKSUM_MAX: Final = (1 << 64) - 1
SHOWN_CHARACTERS, SHOWN_MAX = 100, 3  # maximum malformed records named in one log line


class MigrationState(StrEnum):
    """State of a level in a migration; `duemq_migration.ownership.states` has the transitions."""

    PLANNED = "planned"
    ROUTING = "routing"
    DRAINING = "draining"
    VERIFYING = "verifying"
    DONE = "done"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"


STATE_NAMES: Final = frozenset(MigrationState)


class Transfer(Struct, frozen=True, kw_only=True):
    """Record: the timers own a range of a level's queue.

    Attributes:
        first, end: Queue offsets.
        excluded: Ranges of first..end that were settled before (cancelled, moved, fired) and have
            no owner.
        count: Number of transferred messages.
        checksum: Checksum of these messages, see `duemq_migration.ownership.checksum`.
        promised: Due times of units whose tags code is not a time, by queue offset.
    """

    migration: str
    level: int
    first: int
    end: int
    excluded: tuple[Range, ...] = ()
    count: int = 0
    checksum: int = 0
    promised: Mapping[int, int] = field(default_factory=dict)


class Return(Struct, frozen=True, kw_only=True):
    """Record: the timers no longer own a range of a level's queue.

    Attributes:
        first, end: Queue offsets.
        pending: Ranges that were still pending as timers; the level owns them again.
        count, checksum: Number and checksum of messages in `pending`.
        gone, gone_sum: Number and checksum of the other messages, which were settled since the
            transfer; they have no owner.
    """

    migration: str
    level: int
    first: int
    end: int
    pending: tuple[Range, ...]
    count: int = 0
    checksum: int = 0
    gone: int = 0
    gone_sum: int = 0


class Route(Struct, frozen=True, kw_only=True):
    """Record: new messages of a level become timers (`on`), or level messages again.

    Attributes:
        fence: End of the level's queue when the record was written.
        timer_fence: End of the timer queue at that time.
        rules: Delays of single topics that differ from the level's, topic to ms.
    """

    migration: str
    level: int
    on: bool
    fence: int = 0
    timer_fence: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)


class StateRecord(Struct, frozen=True, kw_only=True):
    """Record: the migration of a level changed from state `source` to `target`.

    If both are equal, the migration was paused (`why` is the cause) or resumed (`why` is empty).

    Attributes:
        operator: Operator who requested the change, "" if the broker made it.
    """

    migration: str
    level: int
    source: str
    target: str
    operator: str = ""
    why: str = ""


OwnershipRecord = Transfer | Return | Route | StateRecord
KINDS: Final[Mapping[str, type[OwnershipRecord]]] = {
    "handover": Transfer,
    "giveback": Return,
    "route": Route,
    "state": StateRecord,
}
_NAMES: Final = {kind: name for name, kind in KINDS.items()}
_JSON_NAMES: Final = {"operator": "who"}
"""Names of fields in the log, where they differ."""
_FIELD_NAMES: Final = {written: name for name, written in _JSON_NAMES.items()}


class JournalEntry(Struct, frozen=True):
    """An ownership record in the log.

    Attributes:
        queue_offset: Position in the journal.
        phys_offset: Log offset of the record.
    """

    queue_offset: int
    phys_offset: int
    store_ms: int
    record: OwnershipRecord


def encode(record: OwnershipRecord) -> bytes:
    """Return the body of a record: compact JSON."""
    fields = {
        _JSON_NAMES.get(name, name): getattr(record, name) for name in record.__struct_fields__
    }
    value = {"kind": _NAMES[type(record)], **fields}
    return json.dumps(value, separators=(",", ":")).encode()


def decode(body: bytes) -> OwnershipRecord:
    """Return the record that `encode` wrote.

    Raises:
        ValueError: The body is malformed.
    """
    try:
        value = json.loads(body)
        kind = KINDS[value.pop("kind")]
        for name in ("excluded", "pending"):
            if name in value:
                value[name] = tuple(map(tuple, value[name]))
        if "promised" in value:
            value["promised"] = {
                int(position): due_ms for position, due_ms in value["promised"].items()
            }
        record = kind(**{_FIELD_NAMES.get(name, name): value[name] for name in value})
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an ownership record: {type(error).__name__}: {error}") from error
    _check(record)
    return record


def _check(record: OwnershipRecord) -> None:
    """Check the type and the bounds of every field.

    Raises:
        ValueError: A field is malformed; the text names it.
    """
    for name, value in asdict(record).items():
        if name in _CHECKS and not _CHECKS[name](value):
            raise ValueError(f"its field {name!r} is malformed: {str(value)[:SHOWN_CHARACTERS]}")
    if isinstance(record, Transfer | Return):
        listed = list(record.excluded if isinstance(record, Transfer) else record.pending)
        bounds_of = [(record.first, record.end)] if record.first < record.end else []
        if record.first > record.end or minus(listed, bounds_of) or joined(listed) != listed:
            raise ValueError(f"its ranges are malformed: {record.first}..{record.end}")


def _is_number(value: object, low: int = 0, high: int = NO_END) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX


def _are_ranges(value: Any) -> bool:
    return all(len(pair) == 2 and all(map(_is_number, pair)) for pair in value)


def _are_numbers(value: object, keys: Callable[[object], bool]) -> bool:
    return isinstance(value, Mapping) and all(
        keys(key) and _is_number(number) for key, number in value.items()
    )


_CHECKS: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("migration", "operator", "why"), _is_name),
    **dict.fromkeys(("source", "target"), lambda value: _is_name(value) and value in STATE_NAMES),
    **dict.fromkeys(("first", "end", "count", "gone", "fence", "timer_fence"), _is_number),
    **dict.fromkeys(("checksum", "gone_sum"), partial(_is_number, high=CHECKSUM_MAX)),
    **dict.fromkeys(("excluded", "pending"), _are_ranges),
    "level": partial(_is_number, low=1, high=QUEUES_MAX),
    "on": lambda value: isinstance(value, bool),
    "promised": partial(_are_numbers, keys=_is_number),
    "rules": partial(_are_numbers, keys=_is_name),
}


def entry_of(record: Record, queue_offset: int) -> JournalEntry:
    """Return the journal entry of a record in the ownership topic.

    Raises:
        ValueError: The record is malformed, or has a born host, so that a client sent it.
    """
    if record.born_host != NO_HOST:
        address, port = record.born_host
        raise ValueError(f"a client wrote it: {ipaddress.ip_address(address)}, port {port}")
    return JournalEntry(queue_offset, record.phys_offset, record.store_ms, decode(record.body))


def append(store: MessageStore, record: OwnershipRecord, now_ms: int) -> JournalEntry:
    """Append a record, which takes effect at once.

    Raises:
        OwnershipRefused: The store is not writable; nothing has changed.
    """
    body = encode(record)
    batch = put_own(store, OWNERSHIP_TOPIC, OWNERSHIP_QUEUE, body, now_ms=now_ms)
    row = batch.rows[0]
    if row["status"]:
        raise OwnershipRefused(batch.refusal(0))
    queue_offset, phys_offset = int(row["queue_offset"]), int(row["phys_offset"])
    return JournalEntry(queue_offset, phys_offset, int(row["store_ms"]), record)


def bounds(store: StoreReader) -> Range:
    """Return the first queue offset of the retained journal and its end."""
    return store.queue_bounds(OWNERSHIP_TOPIC, OWNERSHIP_QUEUE)


def read(store: StoreReader, start: int = 0, *, quiet: bool = False) -> Iterator[JournalEntry]:
    """Yield the retained journal from a queue offset on, without malformed records.

    If retention has removed a record, its messages are removed too: they precede it in the log.

    Args:
        quiet: Do not log skipped records, because another reader does.
    """
    first, end = bounds(store)
    position = max(start, first)
    skipped_count, skipped = 0, list[str]()
    while position < end:
        units = store.units(
            OWNERSHIP_TOPIC, OWNERSHIP_QUEUE, position, min(READ_UNITS, end - position)
        )
        for queue_offset, unit in enumerate(units, position):
            try:
                entry = entry_of(store.read_record(int(unit["phys_offset"])), queue_offset)
            except (RecordUnreadable, ValueError) as error:
                skipped_count += 1
                if len(skipped) < SHOWN_MAX:
                    skipped.append(f"queue offset {queue_offset}: {error}"[: 2 * SHOWN_CHARACTERS])
                continue
            yield entry
        position += max(int(units.size), 1)
    if skipped_count and not quiet:
        log.error(
            "%s: skipped %d records from queue offset %d on, which are not ownership records of a "
            "broker: %s",
            OWNERSHIP_TOPIC,
            skipped_count,
            max(start, first),
            "; ".join(skipped),
        )
