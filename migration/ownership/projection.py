"""File of the journal's projection: config/duemq.migration.json.

Retention removes old records of the ownership journal, so the projection is written to a file with
its queue offset, and a start continues from there. The file may be lost as long as the whole
journal is retained. It may be old; a file ahead of the log's end is ignored.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from delivery import ownership
from delivery.ownership_projection import JournalProjection, LevelProjection
from message_store.errors import CorruptStore, RecordUnreadable
from message_store.json_dialect import dumps, load_config, write_config

if TYPE_CHECKING:
    from message_store.store import MessageStore

PROJECTION_FILE: Final = "duemq.migration.json"


def encode(projection: JournalProjection) -> str:
    """Return the text of duemq.migration.json."""
    levels = {str(number): asdict(level) for number, level in sorted(projection.levels.items())}
    return dumps(
        {
            "at": projection.next_offset,
            "commitLogOffset": projection.log_offset,
            "levels": levels,
        }
    )


def decode(value: Any) -> JournalProjection:
    """Return the projection of a parsed duemq.migration.json.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: The file is malformed.
    """
    levels = {int(number): LevelProjection(**level) for number, level in value["levels"].items()}
    return JournalProjection(levels, int(value["at"]), int(value["commitLogOffset"]))


def fitted(store: MessageStore, found: JournalProjection) -> JournalProjection:
    """Return a projection from a file if it belongs to this log, else an empty one.

    It belongs to the log if its last record is at the offset of the projection. If retention
    removed that record, later records follow; if the files of the queue were lost, it begins at 0
    again.
    """
    first, end = ownership.bounds(store)
    last = found.log_offset - 1
    if last < store.min_offset:
        return found if found.next_offset <= end else replace(found, next_offset=first)
    if last >= store.max_offset:
        return JournalProjection()
    try:
        record = store.read_record(last)
    except RecordUnreadable:
        return JournalProjection()
    expected = ownership.OWNERSHIP_TOPIC, found.next_offset - 1
    return found if (record.topic, record.queue_offset) == expected else JournalProjection()


def load(store: MessageStore) -> JournalProjection:
    """Return the projection from the file, an empty one if there is no valid file.

    Raises:
        CorruptStore: Neither the file nor its `.bak` can be read.
    """
    found = load_config(store.config_path(PROJECTION_FILE), decode)
    return JournalProjection() if found is None else fitted(store, found)


def restore(store: MessageStore) -> JournalProjection:
    """Return the projection of the whole journal; the file stands for removed records."""
    try:
        found = load(store)
    except CorruptStore:
        found = JournalProjection()
    for entry in ownership.read(store, found.next_offset, quiet=True):
        found = found.after(entry)
    return found


def write(store: MessageStore, projection: JournalProjection) -> None:
    """Write the file; the log must be on the disk up to `projection.log_offset`.

    Raises:
        OSError: The disk refused it; the old file stays.
    """
    write_config(store.config_path(PROJECTION_FILE), encode(projection))
