"""Two stores that take turns as master: truncated to a common record, fed with the other's log.

    first     |=========A=========X---B---|        the master dies; its log up to X was copied
    second    |=========A=========X===C===|        promoted: what is pending follows from its log
    first     |=========A=========X===C===|D ...   truncated to X, fed, promoted in turn

Levels, timers, moves, cancels, steps of a migration, checkpoints, kills. The truth is the log
alone: a held record that no record names as its origin is pending, with one owner. At the end the
last master is compared with a store that never had anything but its log.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from duemq_common.clock import FakeClock
from duemq_common.topics import OWNERSHIP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duemq_migration.ownership import projection
from message_store.log.record import Record
from message_store.replication.truncation import truncate_store
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.tags_code_rule import LevelRule
from tests.message_store.replication.test_raw_append import feed, log_of
from tests.migration.test_model import DELAYS_MS
from tests.support.migration_rig import LEVELS, MigrationRig
from tests.support.naive_model import log_records
from tests.support.stores import open_store, small_config
from tests.support.timer_log_room import UNLIMITED, timer_log_room
from timer_store.checkpoint.standby import Standby

HELD = {SCHEDULE_TOPIC, TIMER_TOPIC}
SHRINK = bool(os.environ.get("MIGRATION_SHRINK"))
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if SHRINK else [])]

number = st.integers(0, 1 << 30)
level = st.sampled_from([1, 3, 4, 4, 5, 5])
count = st.sampled_from([1, 3, 10, 200])
act = st.one_of(
    st.tuples(st.just("send"), level, st.integers(1, 12)),
    st.tuples(
        st.just("time"), st.sampled_from([1, 900, 5_000, 70_000, 900_000]), st.integers(1, 9)
    ),
    st.tuples(st.just("advance"), st.sampled_from([1, 50, 999, 1_000, 4_000, 59_000]), count),
    st.tuples(st.just("drain"), level, count),
    st.tuples(st.just("give_back"), level, count),
    st.tuples(st.just("route"), level, count),
    st.tuples(st.just("routed_return"), level, count),
    st.tuples(st.just("cancel"), number, st.just(0)),
    st.tuples(st.just("fire"), number, st.just(0)),
    st.tuples(st.just("move"), number, st.sampled_from([1, 100, 5_000, 70_000])),
    st.tuples(st.just("timers"), st.just(0), st.just(0)),
    st.tuples(st.just("levels"), st.just(0), st.just(0)),
    st.tuples(st.just("projection"), st.just(0), st.just(0)),
    st.tuples(st.just("kill"), st.just(0), st.just(0)),
    st.tuples(st.just("close"), st.just(0), st.just(0)),
)
histories = st.lists(act, min_size=4, max_size=25)
checkpoints = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 3, 20, UNLIMITED])), max_size=3
).map(sorted)


def held_due_ms(record: Record) -> int:
    """Return the due time of a held record, by its own properties."""
    found = record.properties
    if "DUEMQ_DUE_MS" in found:
        return int(found["DUEMQ_DUE_MS"])
    if record.topic == TIMER_TOPIC:
        return int(found["TIMER_DELIVER_MS"])
    return record.store_ms + DELAYS_MS[record.queue_id + 1]


def identity(record: Record) -> tuple[int, int, bytes]:
    return record.phys_offset, record.store_ms, record.body


class Member:
    """One store of the group, closed, or open as master."""

    def __init__(self, root: Path, clock: FakeClock, stage_max: int, fired: set[Any]) -> None:
        self.root, self.clock, self.fired = root, clock, fired
        self.checkpoints = 0  # number of checkpoints as a replica
        self.rig = MigrationRig(
            root,
            clock,
            precision_ms=100,
            roll_window_slots=6_000,
            stage_records_max=stage_max,
            batch_records_max=7,
        )

    # -- as a replica ---------------------------------------------------------------------------

    def copy(self, data: bytes, common: int, checkpoints: Iterable[tuple[float, int]] = ()) -> None:
        """Have the log of another member: the first `common` bytes are here already.

        Args:
            checkpoints: Share of the copied bytes before each checkpoint of the timers, ascending,
                and the number of units for which the timer log has room then.
        """
        if (self.root / "commitlog").is_dir():
            truncate_store(small_config(self.root), self.clock, common)
        rules = (LevelRule(SCHEDULE_TOPIC, LevelHistory([LevelText(0, LEVELS)]).tables),)
        self.checkpoints = 0
        with open_store(self.root, self.clock, rules) as store:
            assert store.max_offset == common
            for name in (TIMER_TOPIC, OWNERSHIP_TOPIC):
                store.topics.set_routing(name, write_queues=1, read_queues=1, perm=6)
            standby = Standby(store, self.clock, self.rig.timer_config)
            ends = [end for end in ends_in_log(data) if end >= common]
            for share, room_units in checkpoints:
                end = ends[round(share * (len(ends) - 1))]
                feed(store, data[store.max_offset : end], store.max_offset, [5_000, 70])
                store.flush()
                with timer_log_room(room_units):
                    asyncio.run(standby.refresh())
            feed(store, data[store.max_offset :], store.max_offset, [5_000, 70])
            self.checkpoints = standby.written

    # -- as the master --------------------------------------------------------------------------

    def promote(self) -> None:
        self.rig.notices.clear()
        self.rig.open()
        self.check()
        assert not self.checkpoints or self.rig.notices == []

    def act(self, act: tuple[str, int, int], serial: Iterator[int]) -> None:
        name, first, second = act
        rig = self.rig
        work: dict[str, Callable[[], Any]] = {
            "send": lambda: self._send(first, second, serial),
            "time": lambda: self._send_timers(first, second, serial),
            "advance": lambda: rig.advance(first),
            "drain": lambda: rig.drain.step(first, second),
            "give_back": lambda: rig.return_units.step(first, second),
            "route": lambda: None if first in rig.router.levels else rig.route(first),
            "routed_return": lambda: rig.routed_return.step(first, second),
            "timers": rig.persist_timers,
            "levels": rig.persist_levels,
            "projection": lambda: projection.write(rig.store, projection.restore(rig.store)),
            "kill": lambda: (rig.kill(), rig.open()),  # type: ignore[func-returns-value]
            "close": lambda: (rig.close(), rig.open()),  # type: ignore[func-returns-value]
        }
        work.get(name, lambda: self._decide(name, first, second))()
        rig.work()

    def _send(self, of_level: int, size: int, serial: Iterator[int]) -> None:
        self.rig.send(
            [
                (of_level, "TU"[n % 2], n % 4, b"<%d >" % n)
                for n, _ in zip(serial, range(size), strict=False)
            ]
        )

    def _send_timers(self, delay_ms: int, size: int, serial: Iterator[int]) -> None:
        for n, _ in zip(serial, range(size), strict=False):
            due_ms = str(self.clock.now_ms() + delay_ms + n % 7)
            self.rig.send([(0, "TU"[n % 2], n % 4, b"<%d >" % n)], TIMER_DELIVER_MS=due_ms)

    def _decide(self, name: str, chosen: int, delay_ms: int) -> None:
        pending = self.pending()
        if not pending:
            return
        offsets = np.array([pending[chosen % len(pending)].phys_offset])
        due_ms = np.array([self.clock.now_ms() + delay_ms])
        for port in (self.rig.pending_levels, self.rig.pending_timers):
            found = port.by_offset(offsets).offsets
            if found.size and name == "move":
                port.move(found, due_ms, self.rig.run_hooks)
            elif found.size:
                before = self.rig.store.max_offset
                getattr(port, name)(found)
                if name == "fire":
                    new = [record for record in self.records() if record.phys_offset >= before]
                    self.fired.update(map(identity, new))

    # -- what must hold -------------------------------------------------------------------------

    def records(self) -> list[Record]:
        return [r for r in log_records(self.rig.store) if r.body.startswith(b"<")]

    def origins(self) -> set[int]:
        return {
            -(r.prepared_offset + 1) for r in log_records(self.rig.store) if r.prepared_offset < 0
        }

    def pending(self) -> list[Record]:
        origins = self.origins()
        return [r for r in self.records() if r.topic in HELD and r.phys_offset not in origins]

    def check(self) -> None:
        rig, now_ms = self.rig, self.clock.now_ms()
        pending = {record.phys_offset for record in self.pending()}
        by_offset = {record.phys_offset: record for record in self.records()}
        ends: Counter[bytes] = Counter()
        for record in by_offset.values():
            if record.topic not in HELD:
                ends[record.body] += 1
                continue
            is_pending = record.phys_offset in pending
            ends[record.body] += is_pending
            owners = self._owners(record)
            assert owners == is_pending, f"{record.body!r} at {record.phys_offset}: {owners} owners"
            assert not is_pending or held_due_ms(record) > now_ms, f"{record.body!r} is due"
        assert [body for body, times in ends.items() if times > 1] == [], "twice"
        assert rig.level_pending + rig.timers.counts.total == len(pending)
        for name in rig.levels.levels:
            assert rig.verify(name).is_right
        for record in by_offset.values():
            origin = by_offset.get(-(record.prepared_offset + 1))
            if record.topic in HELD or origin is None or identity(record) in self.fired:
                continue
            assert record.store_ms >= held_due_ms(origin), f"{record.body!r} came early"

    def _owners(self, record: Record) -> int:
        rig, owners = self.rig, 0
        if record.topic == SCHEDULE_TOPIC:
            of_level = rig.levels.levels.get(record.queue_id + 1)
            owners += of_level is not None and of_level.cursor.is_pending(record.queue_offset)
        rows = rig.timers.records.read(np.array([record.phys_offset]))
        return owners + int(rig.timers.decisions.is_pending(rows)[0])

    def state(self) -> dict[str, Any]:
        """Return what is derived from the log without traces of the enqueueing broker.

        These are the letter that a transfer changes, and the time at which a broker enqueued it.
        """
        rig, owned = self.rig, self.rig.timers.transfers.owned
        return {
            "log": ENQUEUED.sub(b"", log_of(rig.store).replace(b"DELAy", b"DELAY")),
            "levels": {
                n: [at for at in range(of.cursor.end) if of.cursor.is_pending(at)]
                for n, of in rig.levels.levels.items()
                if of.cursor.end
            },
            "timers": rig.timers.counts.by_topic(),
            "files": rig.timers.counts.by_file(),
            "owned": {n: owned.ranges(n) for n, pieces in owned.pieces.items() if pieces},
            "journal": projection.restore(rig.store),
            "first": rig.timers.first_pending_offset,
        }

    def arrivals(self) -> list[tuple[int, str, int, bytes]]:
        """Return what came to the real topics, by time."""
        found = [r for r in self.records() if r.topic not in HELD]
        return sorted((r.store_ms, r.topic, r.queue_id, r.body) for r in found)


def ends_of(store: Any) -> list[int]:
    """Return the ends of the records in a log."""
    return [0, *(int(end) for rows in store.scan(0) for end in ends_in(rows))]


def ends_in(rows: Any) -> list[int]:
    return list((rows["phys_offset"] + rows["record_size"]).tolist())


def ends_in_log(data: bytes) -> list[int]:
    """Return 0 and the ends of the records in the bytes of a log of one file."""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + int.from_bytes(data[ends[-1] : ends[-1] + 4], "big"))
    return ends


def as_sent(log: bytes, letters: str) -> bytes:
    """Return log bytes with the owners' letters that they had when they were sent.

    A transfer changes the letter in the log of the master: a replica has the old one or the new
    one of each record.
    """
    spread = itertools.cycle(letters.encode())
    return LEVEL_NAME.sub(lambda found: b"DELA%c" % next(spread), log) if letters else log


LEVEL_NAME = re.compile(rb"DELA[Yy](?=\x01)")
ENQUEUED = re.compile(rb"(?<=TIMER_ENQUEUE_MS\x01)\d{13}")


@contextmanager
def directories(count: int) -> Iterator[list[Path]]:
    root = Path(tempfile.mkdtemp(prefix="failover-"))
    try:
        yield [root / str(number) for number in range(count)]
    finally:
        shutil.rmtree(root)


@settings(
    max_examples=int(os.environ.get("FAILOVER_MODELS", "10")),
    suppress_health_check=list(HealthCheck),
    phases=PHASES,
    deadline=None,
)
@given(
    turns=st.lists(
        st.tuples(
            histories,
            st.floats(0, 1),
            st.booleans(),
            st.sampled_from([0, 700, 70_000]),
            st.sampled_from(["", "Y", "y", "Yy", "Yyy"]),
            checkpoints,
        ),
        min_size=2,
        max_size=4,
    ),
    stage_max=st.sampled_from([1_024, 5, 30]),
)
def test_failovers_lose_and_repeat_nothing(turns: list[Any], stage_max: int) -> None:
    serial, clock, fired = itertools.count(1), FakeClock(), set[Any]()
    with directories(3) as paths:
        first, second, other = (Member(path, clock, stage_max, fired) for path in paths)
        master, replica = first, second
        common, log = 0, b""
        for history, share, is_killed, outage_ms, letters, written in turns:
            master.promote()
            for step in history:
                master.act(step, serial)
                master.check()
            ends = [end for end in ends_of(master.rig.store) if end >= common]
            log = log_of(master.rig.store)
            cut = ends[round(share * (len(ends) - 1))]
            note(f"the log of {len(log)} bytes is cut to {cut}, {common} were there before")
            master.rig.kill() if is_killed else master.rig.close()
            clock.advance(outage_ms)
            replica.copy(as_sent(log[:cut], letters), common, written)
            common, master, replica = cut, replica, master
        shutil.rmtree(replica.root)
        master.promote()
        other.copy(log[:common], 0)
        other.promote()
        assert master.state() == other.state()
        for step_ms in (1, 999, 30_000, 120_000, 900_000, 900_000):
            now_ms = clock.now_ms()
            master.rig.advance(step_ms)
            master.check()
            clock.set_ms(now_ms)
            other.rig.advance(step_ms)
            assert master.arrivals() == other.arrivals()
        assert not master.pending()
        for member in (master, other):
            member.rig.kill()
