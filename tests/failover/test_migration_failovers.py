"""Failovers of real processes that migrate levels: the next master continues the migration.

An answered decision is in effect at the next master, and one without an answer is in effect or not.
An audit of the stores of all members follows, as after other failovers.

--migration-failovers N  number of failures of a master that migrates (1; `make soak` uses more)
--seed N                 seed of the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery import ownership
from duemq_common.clock import SystemClock
from duemq_common.config import from_properties, read_properties
from duemq_migration.ownership import projection
from message_store.config import StoreConfig
from message_store.store import MessageStore
from tests.failover.audited_stores import MEMBERS, check_stores
from tests.failover.migration_decisions import Decisions
from tests.failover.migrations import run_migrations
from tests.interop.apache_controller import ApacheController
from tests.simulation.group_migration import check_migrations

log = logging.getLogger(__name__)


@pytest.mark.extended
@pytest.mark.interop
@pytest.mark.crash
def test_the_next_master_continues_migrations(
    tmp_path: Path, migration_failovers: int, seed: int
) -> None:
    with ApacheController("5.3.3", tmp_path / "controller") as controller:
        run = asyncio.run(
            run_migrations(
                controller, tmp_path, rounds=migration_failovers, members=MEMBERS, seed=seed
            )
        )
    operator = run.operator
    where = f"seed {seed}, {dict(run.kinds)}, {dict(operator.failed_in)}, logs in {tmp_path}"
    log.info(
        "%s, %d decisions answered of %d, continued %d times, %s",
        run.account,
        operator.decisions.answered_count,
        len(operator.decisions.made),
        operator.continued,
        where,
    )
    assert run.account.is_exact, f"{run.account}, {where}"
    assert run.verified["right"], f"{run.verified}, {where}"
    assert operator.decisions.answered_count >= migration_failovers // 2, operator.refusals
    assert operator.continued >= migration_failovers // 4, where
    check_stores(tmp_path, run.account.acknowledged)
    with ExitStack() as opened:
        configs = [from_properties(StoreConfig, read_properties(each)) for each in run.configs]
        stores = [opened.enter_context(MessageStore(each, SystemClock())) for each in configs]
        check_journal(stores, operator.decisions)
        check_status(stores[0], run.last)


def check_journal(stores: Sequence[MessageStore], decisions: Decisions) -> None:
    """Check the ownership journal: each answered decision is in it once, no other one twice."""
    check_migrations(stores, decisions.runs)
    records = [entry.record for entry in ownership.read(stores[0])]
    counts = Counter(
        (each.operator, each.level) for each in records if isinstance(each, ownership.StateRecord)
    )
    for each in decisions.made:
        for level in each.levels:
            count = counts[each.name, level]
            assert count == 1 or (count == 0 and not each.answered), f"{count} times: {each}"


def check_status(store: MessageStore, shown: Sequence[Any]) -> None:
    """Check the states that the last master reported against the ownership journal."""
    found = projection.restore(store).levels
    for item in shown:
        level = found[item["level"]]
        assert (item["state"], item["cause"]) == (level.state, level.why), f"{item}, not {level}"
        counts = item["moved"], item["returned"], item["migration"]
        assert counts == (level.transferred, level.returned, level.migration), (
            f"{item}, not {level}"
        )
