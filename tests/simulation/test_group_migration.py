"""A migration that runs while its master fails: the next master continues it.

One step moves a few messages, so that both masters transfer some. Every message comes once, none
early, and the ownership journal is one history across both masters.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from delayed_delivery import ownership
from delayed_delivery.ownership import Transfer
from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from duemq_common.topics import SCHEDULE_TOPIC
from tests.simulation.group_checks import Confirmed, check_equal, check_messages
from tests.simulation.group_load import Sent
from tests.simulation.group_migration import check_migrations, working_levels
from tests.simulation.group_rig import GROUP, KILLED, GroupRig, Member, group_rig
from tests.simulation.group_run import is_whole
from tests.simulation.triggered_faults import SECOND
from tests.support.extended import extended
from tests.support.loopback_broker import faults_of
from tests.support.naive_model import log_records
from tests.support.send_path import send_request

pytestmark = KILLED
SEED: Final = 3
LEVEL: Final = 5  # 16 s
COUNT: Final = 40
PROPERTIES: Final = {
    "flushDiskType": "SYNC_FLUSH",
    "migrationRate": "4",
    "timerRollWindowSlot": "200",  # longer than the level's delay: no message waits for it
}
STEP_US: Final = 40 * SECOND
CALL_S_MAX: Final = 10.0
PAUSE_S: Final = 0.1
ATTEMPTS_MAX: Final = 100
NEVER: Final = 1 << 62


class Operator:
    """A client of one member: sends level messages, and commands.

    Attributes:
        sent: Messages by body.
        done: Actions that were answered with success.
    """

    def __init__(self, rig: GroupRig, member: Member) -> None:
        self._address = member.address
        self._process = rig.new_client("client")
        self.sent: dict[bytes, Sent] = {}
        self.done: list[str] = []
        self._process.start(self._stay())

    async def _stay(self) -> None:
        await asyncio.Event().wait()

    def send(self, count: int) -> None:
        """Send messages of the level."""
        first = len(self.sent)
        self.sent |= {b"%d" % number: Sent("level") for number in range(first, first + count)}
        self._process.loop.create_task(self._send(first, count))

    def command(self, action: str) -> None:
        """Send a command about the level."""
        self._process.loop.create_task(self._command(action))

    @property
    def acknowledged(self) -> int:
        """Number of messages that were acknowledged."""
        return sum(each.offset is not None for each in self.sent.values())

    async def _send(self, first: int, count: int) -> None:
        async with RemotingClient(self._address) as client:
            for number in range(first, first + count):
                body = b"%d" % number
                request = send_request(
                    code=10,
                    body=body,
                    topic="T",
                    queueId="0",
                    properties=f"UNIQ_KEY\x01{number}\x02DELAY\x01{LEVEL}\x02",
                )
                response = await accepted(client, request)
                assert response.fields is not None
                self.sent[body].offset = int(response.fields["msgId"][16:], 16)

    async def _command(self, action: str) -> None:
        async with RemotingClient(self._address) as client:
            body = json.dumps({"action": action, "levels": [LEVEL]}).encode()
            response = await client.call(
                Request(RequestCode.MIGRATE, {}, body), timeout_s=CALL_S_MAX
            )
            assert response.code == 0, response.remark
            self.done.append(action)


async def accepted(client: RemotingClient, request: Request) -> Response:
    """Return the success of a send, which a master without a lease refuses at first."""
    for _ in range(ATTEMPTS_MAX):
        response = await client.call(request, timeout_s=CALL_S_MAX)
        if response.code == 0:
            return response
        await asyncio.sleep(PAUSE_S)
    raise AssertionError(response.remark)


def kill(rig: GroupRig, master: Member) -> None:
    master.die(is_cut=True)
    rig.timeline.after(6 * SECOND, master.start)


def pause(rig: GroupRig, master: Member) -> None:
    process = master.process
    assert process is not None
    process.is_paused = True

    def wake() -> None:
        process.is_paused = False

    rig.timeline.after(6 * SECOND, wake)


def cut_off(rig: GroupRig, master: Member) -> None:
    names = [name for name in rig.hosts if name not in (master.host.name, "client")]
    pairs = {
        pair for name in names for pair in ((name, master.host.name), (master.host.name, name))
    }
    rig.network.blocked |= pairs

    def unblock() -> None:
        rig.network.blocked -= pairs

    rig.timeline.after(8 * SECOND, unblock)


def stop(rig: GroupRig, master: Member) -> None:
    master.stop()
    rig.timeline.after(6 * SECOND, master.start)


FAULTS: Final = {"kill": kill, "pause": pause, "cut off": cut_off, "stop": stop}


def transferred(store: Any) -> list[int]:
    """Return the log offsets of the records that make timers of level messages."""
    return [each.phys_offset for each in ownership.read(store) if isinstance(each.record, Transfer)]


def copied_back(store: Any) -> list[int]:
    """Return the log offsets of the level messages that were made of timers."""
    records = [each for each in log_records(store) if each.topic == SCHEDULE_TOPIC]
    return [each.phys_offset for each in records if each.prepared_offset < 0]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("kill", "start"),
        ("cut off", "rollback"),
        *(extended(name, "start") for name in ("pause", "cut off", "stop")),
        *(extended(name, "rollback") for name in ("kill", "pause", "stop")),
    ],
)
def test_the_next_master_continues(name: str, action: str, tmp_path: Path) -> None:
    moved = transferred if action == "start" else copied_back
    with group_rig(tmp_path, SEED, PROPERTIES) as rig:
        confirmed = Confirmed(rig)
        rig.controller.start()
        for member in rig.members:
            member.start()
        in_sync = lambda: len(rig.controller.model.groups[GROUP].in_sync)  # noqa: E731
        assert rig.run(STEP_US, lambda: rig.master() and in_sync() == 3)  # type: ignore[no-untyped-call]
        former = rig.master()
        assert former is not None
        operator = Operator(rig, former)
        operator.send(COUNT)
        assert rig.run(STEP_US, lambda: operator.acknowledged == COUNT)
        operator.command("start")
        assert rig.run(STEP_US, lambda: transferred(former.store) and operator.done)
        if action == "rollback":
            operator.send(COUNT)
            assert rig.run(STEP_US, lambda: operator.acknowledged == 2 * COUNT)
            operator.command("rollback")
            assert rig.run(STEP_US, lambda: operator.done[1:])
        assert rig.run(STEP_US, lambda: len(confirmed.log) > min(moved(former.store) or [NEVER]))
        before = len(confirmed.log)
        assert working_levels(former.store) == [LEVEL]
        FAULTS[name](rig, former)
        assert rig.run(STEP_US, lambda: rig.master() not in (None, former))
        master = rig.master()
        assert master is not None
        assert rig.run(STEP_US, lambda: in_sync() == 3 and is_whole(rig))  # type: ignore[no-untyped-call]
        found = moved(master.store)
        assert found[0] < before < found[-1], f"one of both masters moved nothing: {found}"
        check_equal(rig)
        check_migrations([each.store for each in rig.members], set())
        arrived = check_messages(log_records(master.store), operator.sent)
        assert arrived == dict.fromkeys(operator.sent, 1)
        rig.stop_members()
        assert [fault for each in rig.members for fault in faults_of(each.root)] == []
