"""Memory of a broker with many pending messages: levels, timers, and transferred ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.migration.memory_growth import BATCH, COUNT, LOADS, WARM_UP
from tests.test_house_rules import TOP

GROWTH_MAX = 4 * COUNT  # bytes: less than one number for each message


@pytest.mark.sampled
@pytest.mark.parametrize("load", LOADS)
def test_memory_does_not_grow_with_the_number_of_pending_messages(
    load: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.migration.memory_growth", load, str(tmp_path)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["grown"] < GROWTH_MAX
    assert result["pending"] == WARM_UP * BATCH + COUNT
