"""Member of a group as a process, which prints a line at each change of role, lease or epoch.

python -m tests.interop.member_process HOME CONTROLLER BROKER_NAME
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from duemq.configuration.controller_config import ControllerConfig
from duemq.replication.controller.requests import GroupName
from tests.interop.group_members import BEAT_MS, LIMIT_MS, member

LOOK_S = 0.002


async def main(home: Path, controller: str, group: GroupName) -> None:
    """Run until the process is ended."""
    config = ControllerConfig(
        enabled=True,
        addresses=controller,
        heartbeat_ms=BEAT_MS,
        heartbeat_limit_ms=LIMIT_MS,
        in_sync_check_ms=BEAT_MS,
    )
    async with member(home, config, group) as running:
        service, last = running.service, ""
        running.host.caught_up = frozenset({2})  # refused until there is one
        while True:
            epoch = service.member.epoch
            line = f"{service.member.state.name} {epoch} {service.holds(epoch)}"
            if line != last:
                print(line, flush=True)
                last = line
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    home, controller, broker_name = sys.argv[1:]
    asyncio.run(main(Path(home), controller, GroupName("DefaultCluster", broker_name)))
