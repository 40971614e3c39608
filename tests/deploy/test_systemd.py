"""Units of systemd: verified, and their exposure is limited."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from message_store.recovery.checkpoint import BOOT_ID_PATH
from tests.support.commands import TOP
from tests.support.requirements import need_commands, skip_without

UNITS = sorted((TOP / "deploy" / "systemd").glob("*.service"))
EXPOSURE_MAX = 15  # of 100
PROGRAM = "/opt/duemq/bin/duemq"


def test_the_broker_reads_what_the_product_needs_of_proc() -> None:
    """`ProcSubset=pid` hides the boot id from recovery, and /proc/stat from metrics."""
    assert BOOT_ID_PATH.is_relative_to("/proc/sys")
    [broker] = [unit for unit in UNITS if unit.stem == "duemq-broker"]
    assert not re.search(r"^ProcSubset=pid", broker.read_text(), re.M)


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
