"""Redirected records: real topic and queue of records in a schedule or timer queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from delayed_delivery.quarantine import Reason
from duemq_common.topics import HALF_TOPIC
from message_store.queues.topic_table import QUEUES_MAX, TopicTable

QUEUE_DIGITS_MAX = 9
ENTRY_END, NAME_END = b"\x02", b"\x01"
LEVEL_NAME: Final = b"DELAY"
MOVED_NAME: Final = b"DELAy"  # name of DELAY in the record of a level message that the timers own


class NoTarget(Struct, frozen=True):
    """Reason for which a record has no target."""

    reason: Reason
    detail: str


def real_target(
    properties: Mapping[str, str], topics: TopicTable, source_topic: str, *, routed: bool
) -> tuple[int, int] | NoTarget:
    """Return the target (topic_index, queue_id) that REAL_TOPIC and REAL_QID name.

    As in Apache, a queue beyond the topic's write queues is created: it existed when the producer
    chose it.

    Args:
        source_topic: Topic of the record, which cannot be the target.
        routed: Topics without queues count as missing, because they were deleted.
    """
    name = properties.get("REAL_TOPIC", "")
    queue_id = queue_number(properties.get("REAL_QID", ""))
    if not name or queue_id < 0 or name == source_topic:
        queue = properties.get("REAL_QID")
        return NoTarget(Reason.NO_TARGET, f"REAL_TOPIC is {name!r}, REAL_QID is {queue!r}")
    if name == HALF_TOPIC:
        return NoTarget(Reason.HALF_MESSAGE, "a half message cannot be delayed before its commit")
    index = topics.find(name)
    row = topics.arrays.topics[index]
    if index < 0 or (routed and not row["write_queues"] and not row["read_queues"]):
        return NoTarget(Reason.TOPIC_MISSING, f"the topic {name} does not exist")
    return index, queue_id


def owner_letter(property_text: bytes) -> int:
    """Return the position of the last letter of DELAY or DELAy, which differs by owner; -1 if none.

    A record with both names, or with a CRC of its properties, is not changed. The kernel is
    `timer_store.kernels.transfer.read_level_text`.
    """
    letters, position = [], 0
    for entry in property_text.split(ENTRY_END):
        name = entry.partition(NAME_END)[0]
        if name == b"__CRC32#":
            return -1
        if name in (LEVEL_NAME, MOVED_NAME):
            letters.append(position + len(name) - 1)
        position += len(entry) + len(ENTRY_END)
    return letters[0] if len(letters) == 1 else -1


def queue_number(text: str) -> int:
    """Return the queue id of a text, -1 if it is invalid."""
    digits = text[1:] if text[:1] == "+" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= QUEUE_DIGITS_MAX):
        return -1
    return int(digits) if int(digits) < QUEUES_MAX else -1


def without(text: bytes, *names: bytes) -> bytes:
    """Return a property text without the entries of these names."""
    entries = text.split(ENTRY_END)
    heads = tuple(name + NAME_END for name in names)
    return ENTRY_END.join(entry for entry in entries if not entry.startswith(heads))


def without_last(text: bytes, name: bytes) -> bytes:
    """Return a property text without its last entry if the entry has this name."""
    start = text.rfind(ENTRY_END, 0, -1) + 1 if text.endswith(ENTRY_END) else len(text)
    return text[:start] if text[start:].startswith(name + NAME_END) else text


def renamed(text: bytes, name: bytes, new_name: bytes) -> bytes:
    """Return a property text with the name of one entry changed from `name` to `new_name`.

    If several entries have one of these names and a value, the text is returned unchanged.
    """
    entries = text.split(ENTRY_END)
    heads = (name + NAME_END, new_name + NAME_END)
    position = [
        i for i, entry in enumerate(entries) if entry.startswith(heads) and entry not in heads
    ]
    if len(position) == 1 and entries[position[0]].startswith(heads[0]):
        entries[position[0]] = heads[1] + entries[position[0]][len(heads[0]) :]
    return ENTRY_END.join(entries)
