"""Record the outputs of mqadmin for Apache's broker.

Usage: `python -m tests.interop.record_mqadmin tests/golden/mqadmin/apache-5.3.3.json`
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.interop.apache import Apache
from tests.interop.mqadmin import VERSION, AdminSession
from tests.interop.peers import KEYS


def record(path: Path) -> None:
    """Write the outputs, in normal form, of all commands to a file."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "mqadmin"
        home.mkdir()
        broker = Apache(VERSION, Path(folder) / "broker", keys=KEYS)
        with broker, AdminSession(broker, home) as session:
            printed = session.run_all()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(printed, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
