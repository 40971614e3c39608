"""Programs in how-to pages: their own tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.packages import TOP

FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.S)
# A producer repeats a send that has no response within 3 s, the default. On a busy machine a first
# send can take longer, and the broker then has the message twice.
PATIENT = """\
from duemq.client.client import Client

Client.__init__.__kwdefaults__["timeout_s"] = 60.0
"""


def test_the_tests_of_how_to_pages_pass(tmp_path: Path) -> None:
    pages = sorted((TOP / "docs" / "how-to").glob("*.md"))
    files = [match for page in pages for match in FILE.findall(page.read_text())]
    names = [name for name, _ in files]
    assert len(set(names)) == len(names), "two pages have a file of the same name"
    tests = [name for name in names if name.startswith("test_")]
    assert tests
    (tmp_path / "conftest.py").write_text(PATIENT)
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
