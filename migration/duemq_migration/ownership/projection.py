"""Saved projection of the ownership journal: config/duemq.migration.json.

Retention removes old records of the ownership journal, so the projection is written to a file with
its queue offset and a checksum, and a start continues from there. The file is needed only after
retention has removed records. An old file is valid; a file whose last record is after the end of
the log or was truncated is ignored, but its backup is older and may be valid.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, replace

from delayed_delivery import ownership
from delayed_delivery.ownership_projection import JournalProjection, LevelProjection
from duemq_common.errors import CorruptStore, RecordUnreadable
from duemq_common.json_dialect import backup_path, dumps, load_config, loads, write_config
from duemq_common.topics import OWNERSHIP_TOPIC

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
PROJECTION_FILE: Final = "duemq.migration.json"
_WRITTEN_NAMES: Final = {"operator": "who"}
"""Names of fields in the file and in the journal, where they differ."""
_FIELD_NAMES: Final = {"who": "operator"}


def encode(projection: JournalProjection, generation: int = 0) -> str:
    """Return the text of duemq.migration.json; `generation`: of the log."""
    levels = {
        str(number): {_WRITTEN_NAMES.get(key, key): value for key, value in asdict(level).items()}
        for number, level in sorted(projection.levels.items())
    }
    members: dict[str, object] = {
        "at": projection.next_offset,
        "commitLogOffset": projection.log_offset,
        "levels": levels,
        "logGeneration": generation,
    }
    return dumps({"crc32": _crc(members), **members})


def _crc(members: Mapping[str, object]) -> int:
    """Return the checksum of all other members."""
    return zlib.crc32(dumps({key: members[key] for key in members if key != "crc32"}).encode())


def decode(value: Any) -> tuple[JournalProjection, int]:
    """Return the projection of a parsed duemq.migration.json, and the generation of the log.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: The file is malformed.
    """
    if value["crc32"] != _crc(value):
        raise ValueError("its crc32 does not match its contents: another program has changed them")
    levels = {
        int(number): LevelProjection(
            **{_FIELD_NAMES.get(name, name): fields[name] for name in fields}
        )
        for number, fields in value["levels"].items()
    }
    projection = JournalProjection(levels, int(value["at"]), int(value["commitLogOffset"]))
    return projection, int(value.get("logGeneration", 0))


def fitted(store: MessageStore, projection: JournalProjection) -> JournalProjection:
    """Return a projection from a file if it matches this log, else an empty one.

    It matches if its last record is at its log offset, or retention has removed that record and
    later records follow. If the files of the queue were lost, the queue begins at 0 again.
    """
    first, end = ownership.bounds(store)
    last = projection.log_offset - 1
    if last < store.min_offset:
        return (
            projection if projection.next_offset <= end else replace(projection, next_offset=first)
        )
    if last >= store.max_offset:
        return JournalProjection()
    try:
        record = store.read_record(last)
    except RecordUnreadable:
        return JournalProjection()
    expected = OWNERSHIP_TOPIC, projection.next_offset - 1
    return projection if (record.topic, record.queue_offset) == expected else JournalProjection()


def load(store: MessageStore) -> JournalProjection:
    """Return the projection from the file, an empty one if there is no valid file.

    Raises:
        CorruptStore: Neither the file nor its `.bak` can be read.
    """
    path = store.config_path(PROJECTION_FILE)
    newest = load_config(path, decode)
    for stored in (newest, _backup(path)):
        if stored is not None and stored[0].log_offset <= store.unchanged_end(stored[1]):
            return fitted(store, stored[0])
    return JournalProjection()


def _backup(path: Path) -> tuple[JournalProjection, int] | None:
    try:
        return decode(loads(backup_path(path).read_text("utf-8", "replace")))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def restore(store: MessageStore) -> JournalProjection:
    """Return the projection of the complete journal; the file replaces removed records."""
    try:
        projection = load(store)
    except CorruptStore as error:
        log.error("%s The ownership journal is read from the log instead.", error)
        projection = JournalProjection()
    for entry in ownership.read(store, projection.next_offset, quiet=True):
        projection = projection.after(entry)
    return projection


def write(store: MessageStore, projection: JournalProjection) -> None:
    """Write the file; the log must be synced up to `projection.log_offset`.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    write_config(store.config_path(PROJECTION_FILE), encode(projection, store.generation))
