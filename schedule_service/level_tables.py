"""Level tables of a store: in memory, in delayLevels.json, and in the log of a group.

The due times of pending messages are in the units of their queues. When a replica or a recovery
writes a unit from the log, the level table comes from one of three sources:

    delayLevels.json      The tables of this store: its units agree with them.
    records in the log    The tables of the master that wrote them (`level_journal`), valid for all
                          messages before them.
    the master            Its messageDelayLevel, requested before a replica copies the log. A
                          replica of an Apache broker has no other source.

If a record differs from the file, the units are corrected first, then the file is written. A crash
between the two repeats the correction, and a promoted replica has the due times of its former
master, whatever its own configuration.

The master may have changed its table since it wrote the last bytes of this log, so either table
may apply between the end of this log and the end of the master's log. There a level has the longer
of both delays until a record names the right one: a message may be late, never early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delayed_delivery.level_delays import LEVELS_KEY, parse_levels
from duemq_common.errors import ConfigError, CorruptStore
from duemq_common.json_dialect import load_config, read_config, write_config
from duemq_common.topics import LEVELS_TOPIC, SCHEDULE_TOPIC
from message_store.log.flusher import sync_files
from message_store.recovery.truncations import Truncations
from schedule_service import level_journal
from schedule_service.levels import (
    LevelHistory,
    LevelText,
    StoredLevels,
    decode_history,
    encode_history,
    longest_delays,
)
from schedule_service.queues import correct_due_times

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
FILE_NAME: Final = "delayLevels.json"


class LevelTables:
    """The level tables of one store.

    Args:
        root: Directory of the store.
        levels: messageDelayLevel of the configuration.
    Attributes:
        history: Level tables, shared by all components that compute due times; changed in place.
        adopted: See `StoredLevels`.
        delivered: Returns the progress of the levels for a record (`level_journal`).
        needs_record: Whether a record must be appended to the log, before the next message.
        follows_apache: Whether an Apache broker was the master before this one, and no record has
            its progress yet.
    """

    def __init__(self, root: Path, levels: str) -> None:
        stored = _load(root)
        history = stored.history.before(_floor(root, stored)) if stored is not None else None
        self._is_known = history is not None
        self.adopted = stored.adopted if stored is not None else None
        self.history = history or LevelHistory([LevelText(0, levels)])
        self.needs_record = False
        self.delivered: Callable[[], Mapping[int, int]] = dict
        self.follows_apache = False

    # -- replica --------------------------------------------------------------------------------

    def open_replica(self, store: MessageStore) -> None:
        """Prepare the store of a replica before it copies the log.

        Raises:
            OSError: A file cannot be written.
        """
        self.history.replace(self.history.before(store.max_offset) or self.history.unchanged)
        if not self._is_known and not _has_units(store):
            self._write(store, self.history)
            self._is_known = True
        self.apply_newest(store)
        store.raw.observers.append(lambda slots: self._on_append(store, slots))

    def _on_append(self, store: MessageStore, slots: list[int]) -> None:
        topic = store.topics.find(LEVELS_TOPIC)
        if topic >= 0 and store.topics.slot(topic, level_journal.QUEUE) in slots:
            self.apply_newest(store)

    def apply_newest(self, store: MessageStore) -> None:
        """Apply the newest record of the log to the history, the queues and the file.

        Raises:
            OSError: A file cannot be written. The history is unchanged: the next connection or
                start repeats the call.
        """
        newest = level_journal.newest(store)
        if newest is None:
            return
        with_known = self.history.with_known(newest.history, newest.phys_offset)
        first = self.history.first_difference(with_known) if self._is_known else 0
        if first is None:
            return
        corrected = correct_due_times(store, with_known, first)
        if corrected:
            log.warning(
                "%d due times of levels are corrected: the master has %s=%s",
                corrected,
                LEVELS_KEY,
                with_known.text,
            )
        sync_files(store.queues.files)
        self._write(store, with_known)
        self.history.replace(with_known)
        self._is_known = True

    def follow(self, levels: str, store: MessageStore, log_end: int) -> None:
        """Apply the level table of a master from the end of this log on.

        Args:
            levels: messageDelayLevel of the master.
            log_end: End of the master's log, requested after `levels`.
        Raises:
            ConfigError: The text is invalid.
            OSError: The file cannot be written.
        """
        parse_levels(levels, source="of the master")
        end, before = store.max_offset, self.history.text
        if levels == before:
            return
        log.warning("the master has %s=%s; here it was %s", LEVELS_KEY, levels, before)
        if end == store.min_offset:
            followed = LevelHistory([LevelText(0, levels)])
        else:
            followed = self.history.changed(longest_delays(before, levels), end)
            if log_end > end:
                followed = followed.changed(levels, log_end)
        self._write(store, followed)
        self.history.replace(followed)

    # -- master ---------------------------------------------------------------------------------

    def change(self, levels: str, store: MessageStore, *, write: bool = False) -> None:
        """Write a level text to the disk, then apply it to new messages.

        Raises:
            ConfigError: The text is invalid or cannot be written; nothing has changed.
        """
        history = self.history.trimmed(store.min_offset, store.max_offset)
        if levels != history.text:
            history = history.changed(levels, store.max_offset)
            write = True
        if write:
            try:
                self._write(store, history)
            except OSError as error:
                reason = f"{self._path(store)} cannot be written: {error}"
                raise ConfigError(LEVELS_KEY, levels, reason) from error
            self.history.replace(history)
            self._is_known = True
        self.check_log(store)

    def check_log(self, store: MessageStore) -> None:
        """Append a record if the store has replicas and the last record has other tables."""
        if not store.replicated.is_copied():
            return
        log_min, log_end = store.min_offset, store.max_offset
        newest = level_journal.newest(store)
        texts = newest.history.trimmed(log_min, log_end).texts if newest is not None else ()
        differs = texts != self.history.trimmed(log_min, log_end).texts
        self.needs_record = differs or self.follows_apache
        self.append_due(store)

    def append_due(self, store: MessageStore) -> None:
        """Append the record that `check_log` or `change` requested, if the store accepts messages.

        Called before each batch of messages, because the table must precede them in the log.
        """
        if self.needs_record and not store.refusal:
            history = self.history.trimmed(store.min_offset, store.max_offset)
            now_ms = store.clock.now_ms()
            refusal = level_journal.append(store, history, self.delivered(), now_ms)
            self.needs_record = bool(refusal)
            self.follows_apache &= self.needs_record
            if refusal:
                log.debug("the level tables are not appended yet: %s", refusal)

    # -- file -----------------------------------------------------------------------------------

    @staticmethod
    def _path(store: MessageStore) -> Path:
        return store.config_path(FILE_NAME)

    def _write(self, store: MessageStore, history: LevelHistory) -> None:
        path = self._path(store)
        encoded = encode_history(history, self.adopted, store.generation)
        if read_config(path) != encoded:
            write_config(path, encoded)


def _load(root: Path) -> StoredLevels | None:
    try:
        return load_config(root / "config" / FILE_NAME, decode_history)
    except CorruptStore as error:
        log.error("%s Pending messages keep their due times unless their queue is lost.", error)
        return None


def _floor(root: Path, stored: StoredLevels) -> int:
    return Truncations.load(root).floor(stored.generation)


def _has_units(store: MessageStore) -> bool:
    topic = store.topics.find(SCHEDULE_TOPIC)
    queues = int(store.topics.arrays.topics[topic]["slots_len"]) if topic >= 0 else 0
    bounds = (store.queue_bounds(SCHEDULE_TOPIC, queue) for queue in range(queues))
    return any(first < end for first, end in bounds)
