"""Failovers of real processes under load: acknowledged = delivered exactly once, none early.

A group pops meanwhile: what it has acknowledged does not come back, all else does.

Afterwards Spark reads the stores of all members: their logs are equal, and each log accounts for
every message by itself; that a message is in several stores of a group is no duplicate.

--failovers N    how many failures of a master (50; `make soak` has more)
--seed N         the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.failover.failovers import run_failovers
from tests.interop.apache_controller import ApacheController
from tests.support.duemq_server import ROOT

log = logging.getLogger(__name__)
MEMBERS = 2
LATE_MS_MAX = 90_000  # what falls due during an outage is late by the outage
AUDIT_S_MAX = 600


def audit(command: str, stores: Sequence[Path], *options: str) -> Any:
    """Return what `duemq reconcile` finds in the stores; its exit code must be 0."""
    words = [sys.executable, "-m", "duemq", "reconcile", command, "--json", *options]
    done = subprocess.run(
        [*words, *map(str, stores)],
        cwd=ROOT, capture_output=True, text=True, timeout=AUDIT_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    return json.loads(done.stdout)


@pytest.mark.interop
@pytest.mark.crash
@pytest.mark.spark
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
    pops = run.pops
    assert pops.repeated == set(), f"acknowledged messages were popped again: {where}"
    assert pops.sent <= pops.acknowledged | pops.uncertain, where
    assert len(pops.uncertain) < len(pops.acknowledged), where
    assert pops.left, where
    stores = [tmp_path / f"broker-{number}" / "store" for number in range(1, MEMBERS + 1)]
    compared = audit("replicas", stores)
    assert len({each["log_end"] for each in compared["stores"]}) == 1, compared
    found = audit("run", stores, "--late", str(LATE_MS_MAX), "--ledger", "none")
    assert found["messages"] >= MEMBERS * run.account.acknowledged, found
    assert found["verdicts"] == {"ok": found["messages"]}, found
