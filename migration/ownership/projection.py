"""Projection of the ownership journal: state of each level, transferred ranges, routes.

    records  --apply-->  Projection  --write-->  config/duemq.migration.json

The marks are the truth, but retention removes old ones; so the fold is written down with the queue
offset it reaches, and a start goes on from there. The file may be lost as long as the marks are
there; it may be old, never ahead of the log: what it says behind the log's end is not believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from delivery import ownership
from delivery.ownership import Marked, Route, StateRecord, Transfer
from message_store.errors import CorruptStore, RecordUnreadable
from message_store.json_dialect import dumps, load_config, write_config
from migration.ownership import checksum

FOLD_FILE: Final = "duemq.migration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelProjection:
    """One level, as the marks tell.

    Attributes:
        migration: whose marks these are: the newest.
        state: the newest state mark's, or empty: none was written.
        who, why, changed_ms: of that mark.
        routed: new messages become timers; fence, rules: as its mark says.
        handed, returned: messages that went over, and back; gone: of what was settled when its
            range went back. The sums are their checksums.
        first, end: of the level's queue, what was handed over up to now.
    """

    level: int
    migration: str = ""
    state: str = ""
    who: str = ""
    why: str = ""
    changed_ms: int = 0
    routed: bool = False
    fence: int = 0
    timer_fence: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)
    handed: int = 0
    handed_sum: int = 0
    returned: int = 0
    returned_sum: int = 0
    gone: int = 0
    gone_sum: int = 0
    first: int = 0
    end: int = 0

    def after(self, marked: Marked) -> LevelProjection:
        """Return the level behind one more mark."""
        mark = marked.mark
        mine = replace(self, migration=mark.migration)
        if mark.migration != self.migration:
            mine = _begun_anew(mine)
        if isinstance(mark, StateRecord):
            return replace(
                mine, state=mark.target, who=mark.who, why=mark.why, changed_ms=marked.store_ms
            )
        if isinstance(mark, Route):
            return replace(
                mine,
                routed=mark.on,
                fence=mark.fence,
                timer_fence=mark.timer_fence,
                rules=dict(mark.rules),
            )
        if isinstance(mark, Transfer):
            return replace(
                mine,
                handed=mine.handed + mark.count,
                handed_sum=checksum.plus(mine.handed_sum, mark.checksum),
                first=mark.first if not mine.handed else min(mine.first, mark.first),
                end=max(mine.end, mark.end),
            )
        return replace(
            mine,
            returned=mine.returned + mark.count,
            returned_sum=checksum.plus(mine.returned_sum, mark.checksum),
            gone=mine.gone + mark.gone,
            gone_sum=checksum.plus(mine.gone_sum, mark.gone_sum),
        )


def _begun_anew(level: LevelProjection) -> LevelProjection:
    """Return a level at the first mark of another migration: counts begin at 0, a route stays."""
    return LevelProjection(
        level=level.level,
        migration=level.migration,
        routed=level.routed,
        fence=level.fence,
        timer_fence=level.timer_fence,
        rules=level.rules,
    )


@dataclass(frozen=True, slots=True)
class Projection:
    """All levels.

    Attributes:
        at: queue offset of the next mark to fold.
        log_offset: the log must reach to here for this to be believed.
    """

    levels: Mapping[int, LevelProjection] = field(default_factory=dict)
    at: int = 0
    log_offset: int = 0

    def after(self, marked: Marked) -> Projection:
        """Return the fold behind one more mark; one that is known changes nothing."""
        if marked.at < self.at:
            return self
        level = marked.mark.level
        before = self.levels.get(level, LevelProjection(level=level))
        levels = {**self.levels, level: before.after(marked)}
        return Projection(levels, marked.at + 1, marked.phys_offset + 1)


def encode(folded: Projection) -> str:
    """Return the text of duemq.migration.json."""
    names = LevelProjection.__dataclass_fields__
    levels = {
        str(number): {
            name: dict(value) if name == "rules" else value
            for name in names
            if (value := getattr(level, name)) is not None
        }
        for number, level in sorted(folded.levels.items())
    }
    return dumps({"at": folded.at, "commitLogOffset": folded.log_offset, "levels": levels})


def decode(value: Any) -> Projection:
    """Return the fold of a parsed duemq.migration.json.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: It is no such file.
    """
    levels = {int(number): LevelProjection(**level) for number, level in value["levels"].items()}
    return Projection(levels, int(value["at"]), int(value["commitLogOffset"]))


def believed(store: Any, folded: Projection) -> Projection:
    """Return a fold that was read, if it is of this log: its last mark is where it says.

    Where retention removed that, the marks still there are later ones. Their queue may have begun
    anew, as its files were lost.
    """
    first, end = ownership.bounds(store)
    last = folded.log_offset - 1
    if last < store.min_offset:
        return folded if folded.at <= end else replace(folded, at=first)
    if last >= store.max_offset:
        return Projection()
    try:
        record = store.read_record(last)
    except RecordUnreadable:
        return Projection()
    is_there = (record.topic, record.queue_offset) == (ownership.MARK_TOPIC, folded.at - 1)
    return folded if is_there else Projection()


def load(store: Any) -> Projection:
    """Return what is written down and can be believed.

    Raises:
        CorruptStore: Neither the file nor its `.bak` can be read.
    """
    found = load_config(store.config_path(FOLD_FILE), decode)
    return Projection() if found is None else believed(store, found)


def restore(store: Any) -> Projection:
    """Return the fold of all marks of a store, with the help of its file where marks are gone."""
    try:
        folded = load(store)
    except CorruptStore:
        folded = Projection()
    for marked in ownership.read(store, folded.at, quiet=True):
        folded = folded.after(marked)
    return folded


def write(store: Any, folded: Projection) -> None:
    """Write the fold down; the log must be on the disk up to `folded.log_offset`.

    Raises:
        OSError: The disk refused it; the old file stands.
    """
    write_config(store.config_path(FOLD_FILE), encode(folded))
