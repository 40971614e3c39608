"""Random histories of a group: the table after each start is that of the newest version around.

The model keeps the table of each version. Versions are unique: two masters never have one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from duemq.registry import table_journal
from duemq.registry.journal_log import TableKind
from duemq.registry.table_journal import decode
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion
from tests.support.extended import examples
from tests.support.table_journals import FakeLog, Master, topic

NAMES = st.sampled_from([f"T{number}" for number in range(6)])
Table = dict[str, TopicConfig]
File = tuple[Table, DataVersion]


@dataclass
class Node:
    """The disk of one member: log and file."""

    log: FakeLog = field(default_factory=FakeLog)
    file: File = field(default_factory=lambda: ({}, DataVersion()))


def order_of(version: DataVersion) -> tuple[int, int]:
    return version.state_version, version.counter


class Histories(RuleBasedStateMachine):
    """Two members: one runs as the master, the other copies log and table now and then."""

    @initialize(changes_min=st.integers(1, 30), part_bytes=st.sampled_from([1, 400, 1 << 16]))
    def start(self, changes_min: int, part_bytes: int) -> None:
        self.was = table_journal.CHANGES_MIN, table_journal.PART_BYTES
        table_journal.CHANGES_MIN, table_journal.PART_BYTES = changes_min, part_bytes  # type: ignore[misc]
        self.own, self.other = Node(), Node()
        self.tables: dict[tuple[int, int], Table] = {(0, 0): {}}
        self.epoch = 0
        self.promote()

    def teardown(self) -> None:
        if hasattr(self, "was"):
            table_journal.CHANGES_MIN, table_journal.PART_BYTES = self.was  # type: ignore[misc]

    # -- what the master does -----------------------------------------------------------------

    def promote(self) -> None:
        """Start `own` as the master of the next epoch, and check what it knows."""
        self.epoch += 1
        self.restart()

    def restart(self) -> None:
        expected = self.newest(self.own)
        self.master = Master(self.own.log, *self.own.file, epoch=self.epoch)
        assert order_of(self.master.version) == expected
        assert self.master.table == self.tables[expected]
        self.master.snapshot()  # as at the start of a broker

    def newest(self, node: Node) -> tuple[int, int]:
        """Return the newest version on a disk, from a walk over all records."""
        found = [order_of(node.file[1])]
        for body in node.log.bodies[node.log.first :]:
            assert body is not None
            record = decode(body, TableKind.TOPIC, TopicConfig.from_json)
            if record.part < 0 or record.is_last:
                found.append(order_of(record.version))
        return max(found)

    @rule(changes=st.lists(st.tuples(NAMES, st.integers(0, 9)), min_size=1, max_size=5))
    def change(self, changes: list[tuple[str, int]]) -> None:
        """Create, update or (0 queues) delete topics, one after the other."""
        for name, queues in changes:
            if queues:
                self.master.change(topic(name, queues))
            elif name in self.master.table:
                self.master.change(deleted=name)
            else:
                continue
            self.note()

    def note(self) -> None:
        assert order_of(self.master.version) not in self.tables
        self.tables[order_of(self.master.version)] = dict(self.master.table)

    @rule()
    def write_file(self) -> None:
        self.own.file = self.master.file

    @rule()
    def periodic_work(self) -> None:
        self.master.snapshot()

    # -- what the replica does ----------------------------------------------------------------

    @rule(data=st.data())
    def copy_log(self, data: st.DataObject) -> None:
        first, end = len(self.other.log.bodies), len(self.own.log.bodies)
        taken = data.draw(st.just(end) | st.integers(first, end))
        self.other.log.bodies += self.own.log.bodies[first:taken]

    @rule()
    def copy_table(self) -> None:
        self.other.file = self.master.file

    # -- failures -----------------------------------------------------------------------------

    @rule()
    def kill(self) -> None:
        """The file may be older than the log."""
        self.restart()

    @rule(data=st.data())
    def lose_end_of_log(self, data: st.DataObject) -> None:
        """A power cut: the file is there, the last records are not; the replica follows."""
        self.own.file = self.master.file
        common = len(self.other.log.bodies)
        kept = data.draw(st.integers(min(self.own.log.first, common), common))
        del self.own.log.bodies[kept:]
        del self.other.log.bodies[kept:]
        self.restart()

    @rule()
    def fail_over(self) -> None:
        """The replica is promoted; the former master is truncated to what both have."""
        common = len(self.other.log.bodies)
        self.own, self.other = self.other, self.own
        self.promote()
        del self.other.log.bodies[common:]

    @precondition(lambda self: self.own.log.bodies == self.other.log.bodies)
    @rule()
    def remove_old_records(self) -> None:
        """Retention removes what the newest snapshot replaces, everywhere."""
        body = self.own.log.bodies[-1]
        assert body is not None
        base = decode(body, TableKind.TOPIC, TopicConfig.from_json).base
        if base >= 0:
            self.own.log.first = self.other.log.first = max(self.own.log.first, base)


class TestHistories(Histories.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
