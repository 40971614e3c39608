"""Progress of a migration in a pipe or a file: one line per step."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.cli.migrate_show import progress


def status(state: str, moved: int, remaining: int) -> dict[str, Any]:
    level = {
        "level": 4,
        "state": state,
        "moved": moved,
        "returned": 0,
        "remaining": remaining,
        "blocked_by": "",
        "cause": "",
    }
    return {"levels": [level], "late_p99_ms": None, "rate_per_s": 10.0}


@pytest.mark.finding("3U6")
def test_a_pipe_gets_a_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=False) as show:
        for moved in range(0, 100, 5):
            show(status("draining", moved, 100 - moved))
        show(status("done", 100, 0))
        show(status("done", 100, 0))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "duemq: level 4: draining 0 moved, 100 left, 10/s"
    assert lines[-1] == "duemq: level 4: done 100 moved, 0 left, 10/s"
    assert len(lines) == 11


def test_levels_that_do_not_move_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=False) as show:
        show(status("done", 7, 0))
    assert capsys.readouterr().err == ""
