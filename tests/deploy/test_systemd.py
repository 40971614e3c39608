"""Units of systemd: verified, and their exposure is limited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import TOP
from tests.support.requirements import need_commands, skip_without

UNITS = sorted((TOP / "deploy" / "systemd").glob("*.service"))
EXPOSURE_MAX = 15  # of 100
PROGRAM = "/opt/duemq/bin/duemq"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_valid_and_confined(unit: Path, tmp_path: Path) -> None:
    with skip_without():
        need_commands("systemd-analyze")
    text = unit.read_text()
    assert PROGRAM in text
    copy = tmp_path / unit.name
    copy.write_text(text.replace(PROGRAM, sys.executable))
    for words in (
        ("verify", str(copy)),
        ("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(copy)),
    ):
        done = subprocess.run(
            ["systemd-analyze", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
