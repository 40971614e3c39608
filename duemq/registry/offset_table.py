"""Content of consumerOffset.json.

offsetTable           {"topic@group": {queue: offset}}
groupTopicMap         topics of each group, for Apache
pops                  DueMQ: log offset up to which the table includes all pops
lastRecord, crc32     DueMQ: last record of the log; checksum of what the broker itself acts on
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct, field

from duemq.registry.config_file import JsonObject
from duemq_common.data_version import DataVersion
from duemq_common.json_dialect import Written, written, written_member, written_object
from duemq_common.topics import INTERNAL_GROUP_PREFIX
from message_store.recovery.log_identity import NO_RECORD, LastRecord

SEPARATOR: Final = "@"
POPS: Final = "pops"
CRC: Final = "crc32"
LAST_RECORD: Final = "lastRecord"
_MEMBERS: Final = {"dataVersion", "groupTopicMap", "offsetTable", POPS, CRC, LAST_RECORD}
Pair = tuple[str, str]
"""Topic and group."""
Table = dict[Pair, dict[int, int]]
OFFSET_BYTES: Final = 128  # estimated memory of one offset
FREE_QUEUES: Final = 16  # queues of a pair that do not count in the memory budget
ROWS_DEPTH: Final = 1  # nesting depth of the table in the file


class PopState(NamedTuple):
    """State of pops in a table.

    Attributes:
        before: Log offset up to which the table includes all pops.
        first_needed: First log offset that undecided checkpoints need, by minute (`UndecidedPops`).
        latest_ms: Latest time of a pop, in ms since the epoch. Not part of the checksum, which
            former versions compare.
    """

    before: int
    first_needed: dict[int, int]
    latest_ms: int = 0


class Content(Struct, frozen=True):
    """Content of the file; by default that of a store without the file.

    Attributes:
        pops: None: the table is Apache's.
        extra: Other members.
        table: (topic, group) to queue to offset.
        is_proved: Whether the checksum is right, or the table is Apache's.
        last_record: Last record of the log when the table was written.
    """

    version: DataVersion | None = None
    pops: PopState | None = field(default_factory=lambda: PopState(0, {}))
    extra: dict[str, object] = field(default_factory=dict)
    table: Table = field(default_factory=dict)
    is_proved: bool = True
    last_record: LastRecord = NO_RECORD


class OffsetRows:
    """Rows of a table as text of the file, each encoded after it has changed.

    The file is written every few seconds, and most of its rows have not changed.

    Args:
        table: The table; report its changes.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._changed = dict.fromkeys(table)
        self._texts: dict[Pair, str] = {}
        self._topics: Written | None = None  # None: pairs were added or removed
        self._internal: dict[Pair, None] = {}  # pairs of the checksum

    @property
    def changed_count(self) -> int:
        """Number of rows that are not encoded yet."""
        return len(self._changed)

    def change(self, pair: Pair) -> None:
        """Report a changed or new row."""
        self._changed[pair] = None

    def remove(self, pair: Pair) -> None:
        """Report a removed row."""
        self._changed.pop(pair, None)
        self._internal.pop(pair, None)
        self._topics = None if self._texts.pop(pair, None) else self._topics

    def encode(self, count: int) -> None:
        """Encode rows in the order of their changes."""
        for pair in list(islice(self._changed, count)):
            self._encode(pair)

    def _encode(self, pair: Pair) -> None:
        del self._changed[pair]
        key = key_of(pair)
        if pair not in self._texts:
            self._topics = None
            if is_internal_key(key):
                self._internal[pair] = None
        self._texts[pair] = written_member(key, self._table[pair], ROWS_DEPTH)

    def encode_internal(self) -> None:
        """Encode the rows of the checksum, so that it is that of their texts."""
        for pair in self._internal.keys() & self._changed.keys():
            self._encode(pair)

    def text(self) -> Written:
        """Return the member `offsetTable`."""
        return written_object(self._texts.values(), ROWS_DEPTH)

    def topics_text(self) -> Written:
        """Return the member `groupTopicMap`."""
        if self._topics is None:
            self._topics = written(topics_of_groups(self._texts), ROWS_DEPTH)
        return self._topics

    def internal(self) -> dict[str, Mapping[int, int]]:
        """Return the rows that the checksum includes."""
        return {key_of(pair): self._table[pair] for pair in self._internal}


def key_of(pair: Pair) -> str:
    """Return the name of a row in the file."""
    return f"{pair[0]}{SEPARATOR}{pair[1]}"


def queues_of(topic: str, table: Table) -> set[tuple[str, int]]:
    """Return group and queue of all offsets of a topic."""
    return {
        (group, queue_id)
        for (name, group), offsets in table.items()
        if name == topic
        for queue_id in offsets
    }


def charged_bytes(queues: Mapping[int, int]) -> int:
    """Return the memory that the offsets of a pair count in the memory budget."""
    return max(len(queues) - FREE_QUEUES, 0) * OFFSET_BYTES


def is_internal_key(key: str) -> bool:
    """Return whether the broker itself acts on a row."""
    return SEPARATOR + INTERNAL_GROUP_PREFIX in key


def topics_of_groups(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the topics of each group, for Apache."""
    topics: dict[str, list[str]] = {}
    for topic, group in pairs:
        topics.setdefault(group, []).append(topic)
    return topics


def decode(data: JsonObject) -> Content:
    """Return the content of a parsed file.

    Raises:
        ValueError: The table is malformed.
    """
    pops = _read_pops(data[POPS]) if POPS in data else None
    table = read_table(data.get("offsetTable") or {})
    rows = {f"{topic}{SEPARATOR}{group}": queues for (topic, group), queues in table.items()}
    last = _read_last_record(data.get(LAST_RECORD, NO_RECORD))
    is_apaches = pops is None and CRC not in data
    return Content(
        DataVersion.from_json(data["dataVersion"]) if "dataVersion" in data else None,
        pops,
        {key: value for key, value in data.items() if key not in _MEMBERS},
        table,
        is_apaches or data.get(CRC) == checksum(rows, pops, last),
        last,
    )


def checksum(
    offsets: Mapping[str, Mapping[int, int]], pops: PopState | None, last: LastRecord
) -> int:
    """Return the checksum of the progress that the broker itself acts on."""
    rows = [(key, sorted(offsets[key].items())) for key in sorted(filter(is_internal_key, offsets))]
    state = None if pops is None else (pops.before, sorted(pops.first_needed.items()))
    return zlib.crc32(repr((rows, state, tuple(last))).encode())


def _read_pops(data: object) -> PopState:
    """Decode the member `pops`.

    Raises:
        ValueError: The member is malformed.
    """
    first = data.get("first_needed") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(first, Mapping):
        raise ValueError(f"{POPS} is not an object with first_needed")
    table = {
        read_number(POPS, position): read_number(POPS, each) for position, each in first.items()
    }
    latest_ms = read_number(POPS, data.get("latest_ms", 0))
    return PopState(read_number(POPS, data.get("before")), table, latest_ms)


def _read_last_record(data: object) -> LastRecord:
    """Decode the member `lastRecord`.

    Raises:
        ValueError: The member is malformed.
    """
    if not isinstance(data, list | tuple) or len(data) != len(NO_RECORD):
        raise ValueError(f"{LAST_RECORD} is not a list of a log offset and a checksum")
    return LastRecord(*(read_number(LAST_RECORD, number) for number in data))


def read_table(data: object) -> Table:
    """Decode `{"topic@group": {queue: offset}}`.

    Raises:
        ValueError: The table is malformed.
    """
    if not isinstance(data, Mapping):
        raise ValueError("offsetTable is not an object")
    table: Table = {}
    for key, queues in data.items():
        topic, separator, group = str(key).partition(SEPARATOR)
        if not separator or not isinstance(queues, Mapping):
            raise ValueError(f"offsetTable entry {key!r} is not topic@group with an object")
        table[topic, group] = {
            read_number(key, q): read_number(key, position) for q, position in queues.items()
        }
    return table


def read_number(key: object, value: object) -> int:
    """Return a number that is given as number or text.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"offsetTable entry {key!r} has {value!r}, not a number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"offsetTable entry {key!r} has {value!r}, not a number") from None
