"""Failovers of real processes under load: acknowledged messages are delivered once, none early.

A group pops meanwhile: acknowledged messages are not redelivered, all others are. Schedules run
meanwhile: each planned time is delivered once.

An audit of the stores of all members follows: the logs are equal, and each log accounts for all
messages. A message in several stores of a group does not count as a duplicate.

--failovers N    number of failures of a master (10; `make test-all` and `make soak` use more)
--seed N         seed of the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.failover.audited_stores import MEMBERS, check_stores
from tests.failover.failovers import run_failovers
from tests.failover.schedules import EVERY_MS
from tests.interop.apache_controller import ApacheController

log = logging.getLogger(__name__)


@pytest.mark.interop
@pytest.mark.crash
def test_acknowledged_messages_are_delivered_exactly_once(
    tmp_path: Path, failovers: int, seed: int
) -> None:
    with ApacheController("5.3.3", tmp_path / "controller") as controller:
        run = asyncio.run(
            run_failovers(controller, tmp_path, rounds=failovers, members=MEMBERS, seed=seed)
        )
    where = f"seed {seed}, {dict(run.kinds)}, outages {run.outages_ms} ms, logs in {run.where}"
    log.info("%s, %s", run.account, where)
    assert run.account.is_exact, f"{run.account}, {where}"
    assert run.account.acknowledged > failovers, where
    assert run.kinds["alone"] <= failovers // 10, f"masters without a replica in sync: {where}"
    pops = run.pops
    assert pops.repeated == set(), f"acknowledged messages were popped again: {where}"
    assert pops.sent <= pops.acknowledged | pops.uncertain, where
    assert len(pops.uncertain) < len(pops.acknowledged), where
    assert pops.left, where
    # the pause of each schedule cancels its pending occurrence
    check_stores(tmp_path, run.account.acknowledged, cancelled_max=len(EVERY_MS))
    count = run.schedules.check(tmp_path / "broker-1" / "store", where)
    log.info("%d occurrences of schedules", count)
