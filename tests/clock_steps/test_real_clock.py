"""Steps of the real clock of a broker process; `real_clock` has all combinations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clock_steps.real_clock import (
    MEMORY_BYTES_MAX,
    PROCESSOR_S_MAX,
    STEPS,
    build_shim,
    run_step,
)
from tests.support.extended import extended
from tests.support.requirements import skip_without

pytestmark = [pytest.mark.crash, pytest.mark.finding("3D5")]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("step_ms", "phase"),
    [
        extended(STEPS["10 years"], "running", id="10 years"),
        pytest.param(-STEPS["10 years"], "running", id="10 years back"),
        extended(STEPS["400 days"], "killed", id="400 days at a start"),
    ],
)
def test_a_step_costs_neither_time_nor_memory(step_ms: int, phase: str, tmp_path: Path) -> None:
    """Check the processor time, as the time without a response depends on the machine's load."""
    with skip_without():
        measured = run_step(tmp_path, build_shim(tmp_path), step_ms, phase)
    assert measured.processor_s <= PROCESSOR_S_MAX
    assert measured.memory_bytes <= MEMORY_BYTES_MAX
