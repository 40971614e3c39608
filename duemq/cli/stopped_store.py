"""Pending messages of a stopped store, of DueMQ or Apache, without a change of it.

    store --copy--> work directory --recovery--> levels and timers without deliveries --> pages

The recovery of a broker decides what is pending, as at the start of a broker. It repairs files, so
it runs on a copy. Nothing is delivered, whatever the time: the clock of levels and timers is fixed
at the store time of the newest record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from delayed_delivery.pending import PendingMessages
from duemq.messages.pending_pages import PendingPages
from duemq_common.clock import FakeClock
from duemq_common.config import from_properties
from duemq_common.errors import StoreLocked
from duemq_migration.steps.offline import StoppedHost
from message_store.config import StoreConfig
from message_store.recovery.store_lock import is_locked
from message_store.store import MessageStore
from message_store.store_copy import copy_store
from schedule_service.plugin import SchedulePlugin
from timer_store.config import TimerConfig
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore


@contextmanager
def stopped_pages(
    root: Path, properties: Mapping[str, str], *, work: Path | None = None
) -> Iterator[PendingPages]:
    """Open a copy of a stopped store, and yield the pages of its pending messages.

    Args:
        properties: Configuration of its broker: sizes of files, levels, precision of the timers.
        work: Directory for the temporary copy; None: the parent of the store.
    Raises:
        UsageError: `root` is not a store.
        StoreLocked: A broker has it open.
        CorruptStore: It cannot be recovered.
    """
    if is_locked(root):
        raise StoreLocked(f"{root} is open in a broker: stop it, or export from the broker")
    directory = work or root.resolve().parent
    with tempfile.TemporaryDirectory(prefix="duemq-export-", dir=directory) as temporary:
        copied = Path(temporary) / root.resolve().name
        config = replace(from_properties(StoreConfig, properties), root_text=str(root))
        copy_store(root, copied, commitlog=config.commitlog_dir)
        with _recovered(copied, properties) as (store, ports):
            yield PendingPages(store, lambda: ports)


@contextmanager
def _recovered(
    root: Path, properties: Mapping[str, str]
) -> Iterator[tuple[MessageStore, Sequence[PendingMessages]]]:
    left_out = {"storePathRootDir", "storePathCommitLog"}
    own = {name: value for name, value in properties.items() if name not in left_out}
    clock = FakeClock(0)
    levels = SchedulePlugin(StoppedHost(clock, own, str(root)))
    config = replace(from_properties(StoreConfig, own), root_text=str(root))
    with MessageStore(config, clock, tags_code_rules=levels.tags_code_rules()) as store:
        clock.set_ms(store.appender.last_store_ms)
        for topic in levels.system_topics():
            store.topics.set_routing(
                topic.name, write_queues=topic.queues, read_queues=topic.queues, perm=topic.perm
            )
        pending_levels = levels.recovered(store).pending_levels
        timers = TimerStore(store, clock, from_properties(TimerConfig, own))
        timers.open()
        try:
            yield store, (PendingTimers(timers), pending_levels)
        finally:
            timers.close()
