"""Audit of the stores of a group after failovers, by `duemq reconcile`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.commands import duemq

MEMBERS = 2
LATE_MS_MAX = 90_000  # messages due during an outage are delivered after it


def audit(command: str, stores: Sequence[Path], *options: str) -> Any:
    """Return the findings of `duemq reconcile` on the stores; check that it exits with 0."""
    done = duemq("reconcile", command, "--json", *options, *map(str, stores))
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    return json.loads(done.stdout)


def check_stores(home: Path, acknowledged: int, *, cancelled_max: int = 0) -> None:
    """Audit the stores of all members: equal, and every message is delivered as promised.

    Args:
        cancelled_max: Maximum number of cancelled messages.
    """
    stores = [home / f"broker-{number}" / "store" for number in range(1, MEMBERS + 1)]
    compared = audit("replicas", stores)
    assert len({each["log_end"] for each in compared["stores"]}) == 1, compared
    for store in stores:
        found = audit("run", [store], "--late", str(LATE_MS_MAX), "--ledger", "none")
        assert found["messages"] >= acknowledged, found
        verdicts = dict(found["verdicts"])
        cancelled = verdicts.pop("cancelled", 0)
        assert cancelled <= cancelled_max, found
        assert verdicts == {"ok": found["messages"] - cancelled}, found
