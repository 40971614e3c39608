"""Programs in the documentation run and print what the pages show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def programs(page: str, old: str, new: Path) -> list[str]:
    """Return the Python blocks of a page, with a temporary directory."""
    blocks = BLOCK.findall((TOP / "docs" / page).read_text())
    assert blocks
    assert all(old in block for block in blocks)
    return [block.replace(old, str(new)) for block in blocks]


def test_timers_in_your_program(tmp_path: Path) -> None:
    printed = []
    for program in programs(
        "how-to/timers-in-your-program.md", "/tmp/duemq-timers", tmp_path / "s"
    ):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            cwd=TOP,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout.splitlines()
    assert printed[:2] == ["pending: {'Reminders': 2}", "cancelled: [0]"]
    late_ms = int(re.fullmatch(r"b'tea is ready' late by (\d+) ms", printed[2])[1])
    assert late_ms >= 0
    assert printed[3:] == ["units in slots: 0 next slot: None"]
