"""Seeded simulation of a group of three, with real members in one thread of control.

Everything of the members is real: service and state machine, replication in AutoSwitchHA, store,
recovery, truncation, levels, timers, and the server and client of the remoting protocol. Simulated
are clocks, network, threads and what a power cut leaves (`processes`, `network`, `power_cut`); the
controller is a model with Apache's rules. The search by key (`messageIndexEnable`) is off: its
thread is no part of what a failover changes.

    --group-seeds N         how many seeds
    GROUP_FIRST=<seed>      the first one: `GROUP_FIRST=<seed> --group-seeds 1` repeats a failed run
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.group_run import Outcome, run_group
from tests.simulation.group_world import KILLED

pytestmark = KILLED
FIRST = int(os.environ.get("GROUP_FIRST", "1"))
"""A change of the code can give a seed another run: what one has found is tested directly, too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "group_seed" in metafunc.fixturenames:
        count = int(metafunc.config.getoption("--group-seeds"))
        metafunc.parametrize("group_seed", range(FIRST, FIRST + count))


def check(outcome: Outcome) -> None:
    """Check what only shows that a run was one."""
    assert outcome.findings == []
    assert outcome.faults > 0
    assert 0 < outcome.acknowledged <= outcome.sent


def test_group(group_seed: int, tmp_path: Path) -> None:
    check(run_group(tmp_path, group_seed))


def test_a_seed_names_one_run(tmp_path: Path) -> None:
    seed = 2
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert run_group(first, seed).digest == run_group(second, seed).digest
