"""Programs in the documentation run and print what the pages show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.duemq_server import DueMQ
from tests.support.patient_clients import PREAMBLE

TOP = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def programs(page: str, old: str, new: Path | str) -> list[str]:
    """Return the Python blocks of a page, with a temporary directory."""
    blocks = BLOCK.findall((TOP / "docs" / page).read_text())
    assert blocks
    assert all(old in block for block in blocks)
    return [block.replace(old, str(new)) for block in blocks]


def lines_of(program: str) -> list[str]:
    """Return the lines that a program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREAMBLE + program],
        capture_output=True,
        text=True,
        cwd=TOP,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_timers_in_your_program(tmp_path: Path) -> None:
    printed = []
    for program in programs(
        "how-to/timers-in-your-program.md", "/tmp/duemq-timers", tmp_path / "s"
    ):
        printed += lines_of(program)
    assert printed[:2] == ["pending: {'Reminders': 2}", "cancelled: [0]"]
    late_ms = int(re.fullmatch(r"b'tea is ready' late by (\d+) ms", printed[2])[1])
    assert late_ms >= 0
    assert printed[3:] == ["units in slots: 0 next slot: None"]


def test_python_client(tmp_path: Path) -> None:
    with DueMQ(tmp_path) as server:
        page = programs("how-to/python-client.md", "127.0.0.1:9876", server.namesrv_address)
        printed = [line for program in page for line in lines_of(program)]
    assert printed == ["stored", "[b'42', b'43']", "2", "b'44'"]
