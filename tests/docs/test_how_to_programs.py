"""Programs in how-to pages: their own tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import TOP
from tests.support.patient_clients import PREAMBLE

FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.S)


@pytest.mark.extended
def test_the_tests_of_how_to_pages_pass(tmp_path: Path) -> None:
    pages = sorted((TOP / "docs" / "how-to").glob("*.md"))
    files = [match for page in pages for match in FILE.findall(page.read_text())]
    names = [name for name, _ in files]
    assert len(set(names)) == len(names), "two pages have a file of the same name"
    tests = [name for name in names if name.startswith("test_")]
    assert tests
    (tmp_path / "conftest.py").write_text(PREAMBLE)
    for name, text in files:
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
