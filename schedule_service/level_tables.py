"""Level tables of a store: in memory, in delayLevels.json, and in the log of a group.

The due times of pending messages are in the units of their queues. Three sources name the
table of a unit that is written from the log, on a replica or at a recovery:

    delayLevels.json      The tables of this store: its units agree with them.
    records in the log    The tables of the master that wrote them (`level_journal`). They are right
                          for everything before them.
    the master            Its messageDelayLevel, asked for before a replica copies log. It is all
                          that a replica of an Apache broker can know.

A record that differs from the file corrects the units first, then the file. So a crash between the
two repeats the correction, and a promoted replica has the due times of its former master, whatever
its own configuration.

A master that was asked may have changed its table since it wrote the last bytes that this log has:
which of two tables is in force for the bytes up to its end is not known. There a level has the
longer one of both delays, until a record names the right one: late is possible, early is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from message_store.errors import ConfigError, CorruptStore
from message_store.json_dialect import load_config, read_config, write_config
from message_store.log.flusher import sync_files
from message_store.recovery.truncations import Truncations
from schedule_service import level_journal
from schedule_service.levels import (
    KEY,
    LevelHistory,
    Promise,
    StoredLevels,
    decode_history,
    encode_history,
    latest,
    parse_levels,
)
from schedule_service.names import LEVELS_TOPIC, SCHEDULE_TOPIC
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
        history: Shared by all who compute due times; its contents change.
        adopted: See `StoredLevels`.
        delivered: Returns what a record has of the progress of levels (`level_journal`).
        follows_apache: Whether an Apache broker was the master before this one, and no record has
            its progress yet.
    """

    def __init__(self, root: Path, levels: str) -> None:
        known = _load(root)
        history = known.history.before(_floor(root, known)) if known is not None else None
        self._is_known = history is not None
        self.adopted = known.adopted if known is not None else None
        self.history = history or LevelHistory([Promise(0, levels)])
        self._is_due = False  # a record in the log
        self.delivered: Callable[[], Mapping[int, int]] = dict
        self.follows_apache = False

    # -- replica --------------------------------------------------------------------------------

    def open_replica(self, store: MessageStore) -> None:
        """Prepare a replica, before it copies log.

        Raises:
            OSError: The disk refused it.
        """
        self.history.replace(self.history.before(store.max_offset) or self.history.unchanged)
        if not self._is_known and not _has_units(store):
            self._write(store, self.history)
            self._is_known = True
        self.learn(store)
        store.raw.observers.append(lambda slots: self._look(store, slots))

    def _look(self, store: MessageStore, slots: list[int]) -> None:
        topic = store.topics.find(LEVELS_TOPIC)
        if topic >= 0 and store.topics.slot(topic, level_journal.QUEUE) in slots:
            self.learn(store)

    def learn(self, store: MessageStore) -> None:
        """Apply the newest record of the log to the history, the queues and the file.

        Raises:
            OSError: The disk refused it; it is repeated at the next start.
        """
        found = level_journal.newest(store)
        if found is None:
            return
        learned = self.history.learned(found.history, found.phys_offset)
        first = self.history.first_difference(learned) if self._is_known else 0
        if first is None:
            return
        self.history.replace(learned)
        corrected = correct_due_times(store, self.history, first)
        if corrected:
            log.warning(
                "%d due times of levels are corrected: the master has %s=%s",
                corrected, KEY, self.history.text,
            )  # fmt: skip
        sync_files(store.queues.files)
        self._write(store, self.history)
        self._is_known = True

    def follow(self, levels: str, store: MessageStore, log_end: int) -> None:
        """Use the table of a master from the end of this log on.

        Args:
            levels: Its messageDelayLevel.
            log_end: End of its log, read after that.
        Raises:
            ConfigError: The text is invalid.
            OSError: The disk refused the file.
        """
        parse_levels(levels, source="of the master")
        end, before = store.max_offset, self.history.text
        if levels == before:
            return
        log.warning("the master has %s=%s; here it was %s", KEY, levels, before)
        if end == store.min_offset:
            followed = LevelHistory([Promise(0, levels)])
        else:
            followed = self.history.changed(latest(before, levels), end)
            if log_end > end:
                followed = followed.changed(levels, log_end)
        self._write(store, followed)
        self.history.replace(followed)

    # -- master ---------------------------------------------------------------------------------

    def change(self, levels: str, store: MessageStore, *, write: bool = False) -> None:
        """Write a level text to the disk, then put it in force for new messages.

        Raises:
            ConfigError: It is invalid, or cannot be written; nothing has changed.
        """
        history = self.history.trimmed(store.min_offset, store.max_offset)
        if levels != history.text:
            history = history.changed(levels, store.max_offset)
            write = True
        if write:
            try:
                self._write(store, history)
            except OSError as error:
                why = f"{self._path(store)} cannot be written: {error}"
                raise ConfigError(KEY, levels, why) from error
            self.history.replace(history)
            self._is_known = True
        self.check_log(store)

    def check_log(self, store: MessageStore) -> None:
        """Append a record if replicas copy the log and its last record has other tables."""
        if not store.replicated.is_copied():
            return
        log_min, log_end = store.min_offset, store.max_offset
        found = level_journal.newest(store)
        known = found.history.trimmed(log_min, log_end).promises if found is not None else ()
        differs = known != self.history.trimmed(log_min, log_end).promises
        self._is_due = differs or self.follows_apache
        self.append_due(store)

    def append_due(self, store: MessageStore) -> None:
        """Append the record that is due, if there is one and the store accepts messages.

        Called before each batch of messages: their table precedes them in the log.
        """
        if self._is_due and not store.refusal:
            history = self.history.trimmed(store.min_offset, store.max_offset)
            now_ms = store.clock.now_ms()
            refusal = level_journal.append(store, history, self.delivered(), now_ms)
            self._is_due = bool(refusal)
            self.follows_apache &= self._is_due
            if refusal:
                log.debug("no record of the level tables now: %s", refusal)

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


def _floor(root: Path, known: StoredLevels) -> int:
    return Truncations.load(root).floor(known.generation)


def _has_units(store: MessageStore) -> bool:
    topic = store.topics.find(SCHEDULE_TOPIC)
    queues = int(store.topics.arrays.topics[topic]["slots_len"]) if topic >= 0 else 0
    bounds = (store.queue_bounds(SCHEDULE_TOPIC, queue) for queue in range(queues))
    return any(first < end for first, end in bounds)
