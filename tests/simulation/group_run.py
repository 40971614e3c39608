"""Run of a simulated group: start, faults under load, recovery, and checks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from message_store.store import MessageStore
from message_store.verify import StoreFinding
from tests.simulation.group_checks import (
    Confirmed,
    CopiedOffsets,
    check_equal,
    check_messages,
    check_offsets,
    pending_in,
)
from tests.simulation.group_faults import Faults
from tests.simulation.group_load import GroupLoad
from tests.simulation.group_migration import RATES, check_migrations, working_levels
from tests.simulation.group_pops import check_pops, undecided_in
from tests.simulation.group_rig import GroupRig, group_rig
from tests.simulation.group_transactions import PROPERTIES as OF_TRANSACTIONS
from tests.simulation.group_transactions import check_transactions
from tests.simulation.triggered_faults import SECOND
from tests.support.loopback_broker import faults_of
from tests.support.naive_model import log_records

START_US: Final = 20 * SECOND
FAULTS_US: Final = 30 * SECOND
HEAL_US: Final = (
    120 * SECOND
)  # simulated time in which the group must recover and deliver all due messages
LOOK_US: Final = SECOND // 2
HISTORY: Final = 40
_ends_pending: Final = WeakKeyDictionary[MessageStore, int]()
"""End of the log of an open store when it was last found to have pending messages."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run.

    Attributes:
        digest: Hash of all network traffic and events.
        epochs: Number of elections.
        offsets: Number of checked copies of consumer offset tables.
        healed_us: Simulated time of the recovery, in microseconds.
        popped: Number of popped messages.
        ended: Number of committed or rolled back transactions.
        decided: Number of cancelled, moved or fired messages.
        commands: Number of executed migration commands.
        transfers: Number of ranges that became timers.
    """

    digest: str
    sent: int
    acknowledged: int
    epochs: int
    faults: int
    offsets: int
    healed_us: int
    popped: int
    ended: int
    decided: int
    commands: int
    transfers: int
    codes: dict[int, int]
    findings: list[StoreFinding]


def run_group(home: Path, seed: int) -> Outcome:
    """Run one seed.

    Raises:
        AssertionError: A check failed; its notes contain the seed and the history of the run.
    """
    chance = random.Random(seed)
    flush = chance.choice(["SYNC_FLUSH", "SYNC_FLUSH", "ASYNC_FLUSH"])
    properties = {
        **OF_TRANSACTIONS,
        "flushDiskType": flush,
        "timerDeliverBatchRecords": chance.choice(["1", "50"]),
        "scheduleDeliverBatchRecords": chance.choice(["3", "2048"]),
        "haTransferBatchSize": chance.choice(["1024", "32768"]),
        "migrationRate": chance.choice(RATES),
    }
    with group_rig(home, seed, properties) as rig:
        try:
            return _run(rig, cuts_power=flush == "SYNC_FLUSH")
        except BaseException as error:
            error.add_note(f"seed {seed}, {properties}, before it:")
            error.add_note("\n".join(rig.history[-HISTORY:]))
            raise


def _run(rig: GroupRig, *, cuts_power: bool) -> Outcome:
    confirmed, copied = Confirmed(rig), CopiedOffsets(rig)
    rig.controller.start()
    for member in rig.members:
        member.start()
    assert rig.run(START_US, lambda: rig.master() is not None), "no master"
    load = GroupLoad(rig, confirmed)
    faults = Faults(rig, cuts_power=cuts_power)
    rig.run(FAULTS_US)
    faults.heal()
    # The faults of a short run can keep the clients away from every master.
    assert rig.run(HEAL_US, lambda: load.acknowledged), "no message is acknowledged"
    load.stop()
    since_us = rig.timeline.now_us
    while not is_whole(rig):
        waited_us = rig.timeline.now_us - since_us
        assert waited_us < HEAL_US, f"the group has not healed: {state_of(rig)}"
        rig.run(LOOK_US)
    load.ends = True
    healed_us = rig.timeline.now_us - since_us
    master = rig.master()
    assert master is not None
    check_equal(rig)
    records = log_records(master.store)
    arrived = check_messages(records, load.sent)
    check_transactions(arrived, load.transactions.ends)
    popped = check_pops(records, load.pops.acknowledged)
    check_offsets(rig, load.committed)
    stores = [member.store for member in (master, *rig.members)]
    transfers = check_migrations(stores, load.migrations.runs)
    findings = _stop(rig)
    return Outcome(
        digest=rig.digest,
        sent=len(load.sent),
        acknowledged=load.acknowledged,
        epochs=rig.controller.model.groups["group"].epoch,
        faults=sum(faults.counts.values()),
        offsets=copied.checks,
        healed_us=healed_us,
        popped=popped,
        ended=load.transactions.answered,
        decided=load.decisions.done,
        commands=load.migrations.answered,
        transfers=transfers,
        codes=load.codes,
        findings=findings,
    )


def is_whole(rig: GroupRig) -> bool:
    """Return whether a master serves, all members are in sync and equal, and nothing is pending."""
    master = rig.master()
    group = rig.controller.model.groups["group"]
    if master is None or len(group.in_sync) < len(rig.members):
        return False
    if any(member.serving is None for member in rig.members):
        return False
    stores = [member.store for member in rig.members]
    ends = {store.max_offset for store in stores} | {store.confirm_offset for store in stores}
    if len(ends) > 1 or _ends_pending.get(master.store) == master.store.max_offset:
        return False
    records = log_records(master.store)
    if pending_in(records) or undecided_in(records):
        _ends_pending[master.store] = master.store.max_offset
        return False
    return not working_levels(master.store)


def state_of(rig: GroupRig) -> str:
    """Return the state of the members for an error message."""
    found = [str(rig.controller.model.groups.get("group"))]
    for member in rig.members:
        broker, store = member.broker, member.store
        if broker is None or store is None:
            found.append(f"{member.host.name}: no store, ended {member.ended}")
            continue
        serving = member.serving
        replica = serving.parts.replica
        found.append(
            f"{member.host.name}: {broker.runner.role}, log to {store.max_offset}, confirmed to "
            f"{store.confirm_offset}, {broker.service.view()}, "
            f"{replica.view() if replica is not None else pending_in(log_records(store))}"
        )
    return "\n".join(found)


def _stop(rig: GroupRig) -> list[StoreFinding]:
    """Stop the members cleanly; return the findings of `verify` in their stores."""
    rig.stop_members()
    return [fault for member in rig.members for fault in faults_of(member.root)]
