"""Group of three on a busy machine: busy processes of the same niceness, no failures.

python -m tests.failover.loaded_group [--minutes 30] [--busy 40]

Prints the account of all messages as JSON: the longest outage for producers is `gap_ms`, at most
`GAP_MS_MAX`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.failover.failovers import DRAIN_S, running_group
from tests.interop.apache_controller import ApacheController
from tests.support.child_process import ended_with_test
from tests.support.failover_demo.group_load import Account, GroupLoad

BUSY: Final = "while True: pass"
MEMBERS, RATE = 3, 50
GAP_MS_MAX: Final = 15_000


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Compute in `count` processes while the block is open."""
    command = ended_with_test([sys.executable, "-S", "-c", BUSY])
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


async def run(controller: ApacheController, home: Path, *, seconds: float, busy: int) -> Account:
    """Send to a group for some time on a busy machine; return the account of the messages."""
    async with running_group(controller, home, MEMBERS) as group:
        load = GroupLoad(controller.namesrv_address, "Loaded", rate=RATE)
        assert len(group.members) == MEMBERS
        await load.prepare()
        try:
            with busy_processes(busy):
                await load.run(seconds, DRAIN_S)
        finally:
            await load.close()
        return load.account()


def main() -> int:
    """Run the load; return 1 if messages were lost or an outage was too long."""
    parser = argparse.ArgumentParser(prog="loaded_group", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--busy", type=int, default=40)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="loaded-group-"))
    with ApacheController("5.3.3", home / "controller") as controller:
        work = run(controller, home, seconds=options.minutes * 60, busy=options.busy)
        account = asyncio.run(work)
    sys.stdout.write(json.dumps({**asdict(account), "logs": str(home)}) + "\n")
    return int(not account.is_exact or account.gap_ms > GAP_MS_MAX)


if __name__ == "__main__":
    raise SystemExit(main())
