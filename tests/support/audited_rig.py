"""Stores of random histories, audited while they grow: sends, decisions, faults, retention, kills.

A step is two numbers: which event, and which message or how many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from delayed_delivery.quarantine import origin_of
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import TIMER_TOPIC
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from tests.spark_reconciliation.log_bytes import Log
from tests.support.migration_rig import MigrationRig
from tests.support.stores import LOOPBACK

LOG_FILE_BYTES = 4_096
STORE = {"commitlog_file_bytes": LOG_FILE_BYTES, "message_bytes_max": 1_500}
SECOND_MS = 1_000


class AuditedRig:
    """Store with levels and timers, and steps that change it.

    Attributes:
        end: Log offset of the end of the last audit; faults are planted in later records only.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.end = root, 0
        self.rig = MigrationRig(root)
        self.rig.store_changes = dict(STORE)
        self.pending: list[int] = []
        self.sent: list[int] = []
        self.open()
        self.send(2)

    def open(self) -> None:
        self.rig.open()
        self.rig.store.add_dispatcher(self._note)

    def _note(self, batch: PutBatch) -> None:
        topics = self.rig.store.topics
        for row in batch.filled:
            name = topics.name(int(row["topic_index"]))
            if name in ("T", "U") and row["prepared_offset"] < 0:
                self.sent.append(int(row["phys_offset"]))
            if name in (TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"):
                self.pending.append(int(row["phys_offset"]))

    @property
    def events(self) -> list[Callable[[int], None]]:
        """All events; the first ones are the most frequent."""
        usual = [self.send, self.advance, self.send, self.advance]
        decisions = [self.cancel, self.move, self.fire]
        faults = [self.repeat, self.lose, self.hasten, self.damage, self.stray]
        operations = [self.persist, self.restart, self.kill, self.remove, self.migrate]
        return [*usual, *decisions, *faults, *operations]

    def audited(self) -> None:
        """Note that an audit has read the store."""
        self.end = self.rig.store.max_offset

    def step(self, kind: int, number: int) -> None:
        """Run an event."""
        self.events[kind % len(self.events)](number)

    # -- use --------------------------------------------------------------------------------------

    def send(self, number: int) -> None:
        clock = self.rig.clock
        for count in range(1 + number % 3):
            topic = "TU"[(number + count) % 2]
            if number % 2:
                self.rig.send([(1 + number % 4, topic, number % 4, b"level %d" % number)])
                continue
            due_ms = clock.now_ms() + 1 + number * 777 + count * 20_000
            batch = PutBatch(1)
            self._add(batch, topic, b"timer %d" % number, {"TIMER_DELIVER_MS": str(due_ms)})
            self.rig.put(batch)

    def _add(
        self,
        batch: PutBatch,
        topic: str,
        body: bytes,
        properties: dict[str, str],
        origin: int = 0,
        born_ms: int = 0,
    ) -> None:
        now_ms = self.rig.clock.now_ms()
        batch.add(
            topic_index=self.rig.store.topics.add(topic),
            queue_id=0,
            body=body,
            properties=encode_properties({"UNIQ_KEY": f"{now_ms:032X}"} | properties),
            born_ms=born_ms or now_ms,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
            prepared_offset=origin,
        )

    def advance(self, number: int) -> None:
        self.rig.advance(number * SECOND_MS // 2)

    def _decide(self, number: int, decision: Callable[..., object]) -> None:
        chosen = self.readable(self.pending)
        if chosen:
            decision(np.array([chosen[number % len(chosen)]]))
            self.rig.work()

    def readable(self, offsets: list[int]) -> list[int]:
        return [offset for offset in offsets if offset >= self.rig.store.min_offset]

    def origins(self) -> dict[int, int]:
        """Return the log offsets of deliveries with those of the records that they name."""
        sent = self.readable(self.sent)
        return {offset: -self.rig.store.read_record(offset).prepared_offset - 1 for offset in sent}

    def cancel(self, number: int) -> None:
        self._decide(number, self.rig.pending_timers.cancel)
        self._decide(number + 1, self.rig.pending_levels.cancel)

    def fire(self, number: int) -> None:
        self._decide(number, self.rig.pending_timers.fire)
        self._decide(number + 1, self.rig.pending_levels.fire)

    def move(self, number: int) -> None:
        due_ms = np.array([self.rig.clock.now_ms() + number * SECOND_MS])
        for pending in (self.rig.pending_timers, self.rig.pending_levels):
            self._decide(
                number, lambda one, pending=pending: pending.move(one, due_ms, self.rig.run_hooks)
            )

    # -- faults -----------------------------------------------------------------------------------

    def repeat(self, number: int) -> None:
        """Deliver a message again, which was delivered at any time."""
        sent = self.readable(self.sent)
        if not sent:
            return
        try:
            record = self.rig.store.read_record(sent[number % len(sent)])
        except RecordUnreadable:  # damaged by a former step
            return
        batch = PutBatch(1)
        facts = (record.properties, record.prepared_offset, record.born_ms)
        self._add(batch, "T", record.body, *facts)
        batch.trusted = True
        self.rig.store.put(batch)

    def stray(self, number: int) -> None:
        """Append a delivery of a message that was never scheduled."""
        batch = PutBatch(1)
        self._add(batch, "T", b"plain", {})
        self.rig.put(batch)
        named = origin_of(int(batch.filled["phys_offset"][0]))
        batch = PutBatch(1)
        self._add(batch, "T", b"plain", {}, named)
        batch.trusted = True
        self.rig.store.put(batch)

    def _change(self, number: int, change: Callable[[Log, int], None]) -> None:
        """Change a delivery after the last audit in the log."""
        new = [offset for offset in self.readable(self.sent) if offset >= self.end]
        if new:
            log = Log(self.root, LOG_FILE_BYTES)
            change(log, new[number % len(new)])
            log.close()

    def lose(self, number: int) -> None:
        def change(log: Log, offset: int) -> None:
            log.head(offset)["sys_flag"] = layout.SYS_ROLLBACK

        self._change(number, change)

    def hasten(self, number: int) -> None:
        def change(log: Log, offset: int) -> None:
            log.head(offset)["store_ms"] -= 200 * (1 + number)

        self._change(number, change)

    def damage(self, number: int) -> None:
        self._change(number, lambda log, offset: log.flip(offset + layout.RECORD_HEAD.itemsize))

    # -- operations -------------------------------------------------------------------------------

    def persist(self, number: int) -> None:
        self.rig.persist_timers(last=bool(number % 2))
        self.rig.persist_levels()

    def restart(self, number: int) -> None:
        self.rig.close()
        self.open()

    def kill(self, number: int) -> None:
        self.rig.kill()
        self.open()

    def remove(self, number: int) -> None:
        """Remove the first log file, as retention does."""
        files = sorted((self.root / "commitlog").iterdir())
        if len(files) > 2:
            self.rig.close()
            files[0].unlink()
            self.open()

    def migrate(self, number: int) -> None:
        level = 1 + number % 4
        if number % 3 == 0:
            self.rig.route(level)
        elif number % 3 == 1:
            self.rig.drain.step(level, 100, migration="m")
        self.rig.work()
