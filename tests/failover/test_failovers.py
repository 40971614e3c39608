"""Failovers of real processes under load: acknowledged = delivered exactly once, none early.

--failovers N    how many failures of a master (50; `make soak` has more)
--seed N         the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.failover.failovers import run_failovers
from tests.interop.apache_controller import ApacheController

log = logging.getLogger(__name__)
MEMBERS = 2


@pytest.mark.interop
@pytest.mark.crash
def test_every_acknowledged_message_comes_exactly_once(
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
