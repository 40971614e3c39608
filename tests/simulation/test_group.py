"""Seeded simulation of a group of three, with real members in one thread of control.

The members run the complete product: service and state machine, replication in AutoSwitchHA, store,
recovery, truncation, levels, timers, and the server and client of the remoting protocol. Clocks,
network, threads and power cuts are simulated (`processes`, `network`, `power_cut`); the controller
is a model with Apache's rules. The key index (`messageIndexEnable`) is disabled, since failovers do
not affect its thread.

    --group-seeds N         number of seeds
    --seed N                first seed; `--seed N --group-seeds 1` repeats a failed run
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.group_rig import KILLED
from tests.simulation.group_run import Outcome, run_group

pytestmark = KILLED


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "group_seed" in metafunc.fixturenames:
        first, count = (metafunc.config.getoption(name) for name in ("--seed", "--group-seeds"))
        metafunc.parametrize("group_seed", range(first, first + count))


def check(outcome: Outcome) -> None:
    """Check that a run had activity of all kinds."""
    assert outcome.findings == []
    assert outcome.faults > 0
    assert 0 < outcome.acknowledged <= outcome.sent


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Outcome:
    """The run of the first seed, for both tests."""
    return run_group(tmp_path_factory.mktemp("first"), seed)


def test_group(group_seed: int, seed: int, first: Outcome, tmp_path: Path) -> None:
    check(first if group_seed == seed else run_group(tmp_path, group_seed))


@pytest.mark.extended
def test_runs_of_one_seed_are_identical(seed: int, first: Outcome, tmp_path: Path) -> None:
    assert run_group(tmp_path, seed).digest == first.digest
