"""State of one timer store, shared by its components.

A component takes this object, or the fields that it needs, but not `TimerStore`, which runs the
components. Only the thread that opened the store uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from msgspec import Struct

from delayed_delivery.outcome import DeliveryHistory, DeliveryStats
from delayed_delivery.records import first_log_offset
from duemq_common.clock import Clock
from duemq_common.topics import TIMER_TOPIC
from message_store.store import MessageStore
from timer_store.checkpoint.snapshot import SnapshotFiles
from timer_store.config import TimerConfig
from timer_store.dequeue.deliverer import TimerDeliverer
from timer_store.dequeue.dequeue_service import DequeueService
from timer_store.dequeue.near_stage import NearStage
from timer_store.dequeue.unit_check import UnitCheck
from timer_store.enqueue.enqueue_service import EnqueueService, TimerFetcher
from timer_store.enqueue.transfers import TransferredUnits
from timer_store.layout import Offsets
from timer_store.log.slot_choice import candidates
from timer_store.log.timer_log import TimerLog
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import open_wheel
from timer_store.names import TIMER_QUEUE
from timer_store.pending.decision_records import DecidingRecords, TimerCopies
from timer_store.pending.origin_run import OriginRun
from timer_store.pending.records import RecordReader
from timer_store.progress import PendingCounts, Position, SettledTimers


class TimerState(Struct, kw_only=True):
    """Shared state of one timer store.

    Attributes:
        findings: Log lines about files that were replaced at the opening.
        rebuilds: Number of rebuilds of timer log and wheel; a rebuild invalidates positions in the
            timer log.
        is_adopting: Whether timers of the queue that an Apache broker settled are known to this
            process only, so that no checkpoint may be written.
        pinned_from: First log offset that the last checkpoint needs, None if it needs none.
    """

    store: MessageStore
    clock: Clock
    config: TimerConfig
    files: SnapshotFiles
    units: TimerUnits
    position: Position
    counts: PendingCounts
    settled_timers: SettledTimers
    stage: NearStage
    fetch: TimerFetcher
    records: RecordReader
    deliverer: TimerDeliverer
    deciding: DecidingRecords
    copies: TimerCopies
    enqueue: EnqueueService
    dequeue: DequeueService
    transfers: TransferredUnits
    findings: list[str]
    origin_run: OriginRun
    rebuilds: int = 0
    is_adopting: bool = False
    pinned_from: int | None = None

    @classmethod
    def create(cls, store: MessageStore, clock: Clock, config: TimerConfig) -> Self:
        """Return the state of a store whose files are opened but not loaded."""
        root, precision_ms = Path(store.root), config.precision_ms
        findings: list[str] = []
        units = _units_of(root, config, findings)
        now_ms = clock.now_ms()
        start_ms = now_ms - now_ms % precision_ms
        position, settled_timers = Position(start_ms, start_ms), SettledTimers()
        counts = PendingCounts(store.topics, store.config.commitlog_file_bytes)
        stage = NearStage(config.stage_records_max)
        fetch = TimerFetcher(store, config)
        enqueue = EnqueueService(
            fetch,
            units,
            stage,
            counts,
            position,
            precision_ms=precision_ms,
            window_ms=config.window_ms,
        )
        transfers = TransferredUnits(store, units, position, counts, enqueue, config.window_ms)
        records = RecordReader(store, precision_ms, transfers.at_offsets)
        check = UnitCheck(store, records, counts, precision_ms, units.log.directory)
        deliverer = TimerDeliverer(store, precision_ms, check)
        deciding = DecidingRecords(store, precision_ms)
        copies = TimerCopies(records, deciding)
        dequeue = DequeueService(
            store,
            units,
            stage,
            deliverer,
            counts,
            settled_timers,
            position,
            config,
            DeliveryStats(store.topics),
            check,
            DeliveryHistory(clock.now_ms()),
        )
        return cls(
            store=store,
            clock=clock,
            config=config,
            files=SnapshotFiles(root / "config"),
            units=units,
            position=position,
            counts=counts,
            settled_timers=settled_timers,
            stage=stage,
            fetch=fetch,
            records=records,
            deliverer=deliverer,
            deciding=deciding,
            copies=copies,
            enqueue=enqueue,
            dequeue=dequeue,
            transfers=transfers,
            findings=findings,
            origin_run=OriginRun(),
        )

    @property
    def first_needed(self) -> int | None:
        """First log offset that a pending timer needs, None without any."""
        return lowest(
            self.counts.first_file, self.first_in_queue(), self.transfers.first_unenqueued()
        )

    def first_in_queue(self) -> int | None:
        """Return the log offset of the first record of the timer queue that is not enqueued."""
        offset = self.position.queue_offset
        return first_log_offset(self.store, TIMER_TOPIC, TIMER_QUEUE, offset)

    def pin(self) -> None:
        """Pin the needed log files until the next checkpoint."""
        self.pinned_from = lowest(self.pinned_from, self.first_needed)

    def slots_of(self, due_ms: Offsets) -> tuple[Offsets, ...]:
        """Return the slots that may contain the units of timers, see `slot_choice.candidates`."""
        position, window_ms = self.position, self.config.window_ms
        loaded_ms = position.staged_ms, position.rolled_ms
        return candidates(due_ms, position.read_ms, loaded_ms, window_ms)


def lowest(*offsets: int | None) -> int | None:
    """Return the lowest offset that is not None, None without any."""
    return min((offset for offset in offsets if offset is not None), default=None)


def _units_of(root: Path, config: TimerConfig, findings: list[str]) -> TimerUnits:
    """Return wheel and timer log of a store; add what is wrong with them to `findings`."""
    wheel = open_wheel(root / "timerwheel", config.precision_ms, findings)
    return TimerUnits(TimerLog(root / "timerlog", config.log_file_bytes), wheel, config.window_ms)
