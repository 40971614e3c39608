"""Migrations of levels in a simulated group of brokers, and their records in the last log.

An operator starts, rolls back, pauses and resumes at the member that is master by then. A migration
that a master has begun continues on its successor, from the ownership journal alone: states follow
each other, each message has one owner at a time, and every verification finds both owners equal.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Final

import pytest

import duemq_common.ledger.identity
import duemq_migration.steps.operations
from delayed_delivery import ownership
from delayed_delivery.ownership import JournalEntry, Return, Route, StateRecord, Transfer
from delayed_delivery.ownership_projection import JournalProjection, Ownership
from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.plugins import InstalledPlugin
from duemq_common.codes import RequestCode
from duemq_common.ledger.writer import LedgerWriter
from duemq_common.request import Request
from duemq_migration.ownership import projection
from duemq_migration.ownership.states import MOVES, WORKING
from message_store.ranges import minus

if TYPE_CHECKING:
    from tests.simulation.group_load import GroupLoad

MIGRATION: Final = InstalledPlugin(
    "migration",
    EntryPoint("migration", "duemq_migration.plugin:create_plugin", ENTRY_POINT_GROUP),
)
RATES: Final = ("0", "5", "30")  # units per second, 0 for no limit
ACTIONS: Final = ("start", "start", "start", "rollback", "pause", "resume", "verify")
LEVELS: Final = (1, 2, 3, 4)
CALL_S_MAX: Final = 2.0
RESUME_S: Final = 1.0
LEGAL: Final = {(source.value, target.value) for (source, _), target in MOVES.items()} | {
    (state.value, state.value) for state in WORKING
}
FIRST: Final = ("", "rolled_back")  # a route that has no state record yet is as if planned
VERIFICATION: Final = (
    "verification"  # operator in the record that pauses a level whose owners differ
)


async def no_ledger(writer: LedgerWriter, *call: object) -> None:
    """In the place of `LedgerWriter._in_thread`: no failover changes the ledger."""


class SimSecrets:
    """In the place of the module `secrets`: names that the seed decides."""

    def token_bytes(self, count: int) -> bytes:
        return random.randbytes(count)

    def token_hex(self, count: int) -> str:
        return random.randbytes(count).hex()


def replaced(patch: pytest.MonkeyPatch) -> None:
    """Replace what of migrations reaches outside of a simulated process."""
    patch.setattr(LedgerWriter, "_in_thread", no_ledger)
    for module in (duemq_common.ledger.identity, duemq_migration.steps.operations):
        patch.setattr(module, "secrets", SimSecrets())


class Migrations:
    """An operator.

    Attributes:
        answered: Number of commands that were executed.
        runs: Migrations whose start was answered.
    """

    def __init__(self, load: GroupLoad) -> None:
        self._load, self._chance = load, load.chance
        self.answered = 0
        self.runs: set[str] = set()

    async def run(self) -> None:
        """Command at random until the load stops; afterwards let every level go on."""
        clients = self._load.clients()
        while not self._load.stops:
            await asyncio.sleep(self._chance.choice([0.1, 0.3, 1.0]))
            action, levels = self._chance.choice(ACTIONS), [self._chance.choice(LEVELS)]
            done = await self._call(clients[self._load.favourite], action, levels)
            if done is not None:
                self.answered += 1
                if done["migration"]:
                    self.runs.add(done["migration"])
        while not self._load.ends:
            for client in clients.values():
                await self._call(client, "resume", [])
            await asyncio.sleep(RESUME_S)
        for client in clients.values():
            await client.close()

    async def _call(self, client: Any, action: str, levels: list[int]) -> Any:
        """Return the response to a command, None if it was refused, or lost."""
        body = json.dumps({"action": action, "levels": levels, "operator": "test"}).encode()
        try:
            response = await client.call(
                Request(RequestCode.MIGRATE, {}, body), timeout_s=CALL_S_MAX
            )
        except OSError:
            return None
        return json.loads(bytes(response.body)) if response.code == 0 else None


def working_levels(store: Any) -> list[int]:
    """Return the levels of a store whose migration or rollback has not ended."""
    found = _journal(ownership.read(store, quiet=True))
    return [level for level, each in found.levels.items() if each.state in WORKING]


def _journal(entries: Any) -> JournalProjection:
    found = JournalProjection()
    for entry in entries:
        found = found.after(entry)
    return found


def check_migrations(stores: Sequence[Any], runs: set[str]) -> int:
    """Check the ownership journal of a group's equal stores; return its number of transfers.

    Args:
        runs: Migrations that an operator knows to be started.
    """
    entries = list(ownership.read(stores[0]))
    states: dict[int, str] = {}
    owned, transfers = Ownership(), 0
    for number, entry in enumerate(entries):
        assert entry.queue_offset == number, f"record {number} is at {entry.queue_offset}"
        record = entry.record
        if isinstance(record, StateRecord):
            _check_state(record, states)
        elif isinstance(record, Transfer | Return):
            _check_transfer(entry, owned)
            transfers += isinstance(record, Transfer)
        owned.apply(entry)
    known = {entry.record.migration for entry in entries if isinstance(entry.record, Route)}
    assert runs <= known, f"starts are lost that were answered: {runs - known}"
    expected = _journal(entries)
    for store in stores:
        found = projection.restore(store)
        assert found.levels == expected.levels, f"{found.levels}, not {expected.levels}"
    return transfers


def _check_state(record: StateRecord, states: dict[int, str]) -> None:
    before = states.get(record.level, "")
    assert record.operator != VERIFICATION, f"level {record.level}: {record.why}"
    is_first = before in FIRST and (record.source, record.target) == ("planned", "routing")
    assert is_first or record.source == before, f"{record} follows {before!r}"
    assert is_first or (record.source, record.target) in LEGAL, record
    states[record.level] = record.target


def _check_transfer(entry: JournalEntry, owned: Ownership) -> None:
    """Check that a range changes its owner: it belongs to the other one before."""
    record = entry.record
    if isinstance(record, Transfer):
        gained = minus([(record.first, record.end)], record.excluded)
        for first, end in gained:
            twice = owned.ranges(record.level, first, end)
            assert not twice, f"the timers own {twice} already: {record}"
    elif isinstance(record, Return):
        for first, end in record.pending:
            mine = owned.ranges(record.level, first, end)
            assert mine == [(first, end)], f"the timers own {mine} of it: {record}"
