"""Properties that only a broker writes: a client that sends them sends nothing anywhere else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.registry.internal_topics import INTERNAL_TOPICS
from duemq_common.clock import FakeClock
from tests.support.running_broker import running, small

HOUR_MS = 3_600_000
DELAYS = {
    "at once": {},
    "level": {"DELAY": "1"},
    "timer": {"TIMER_DELAY_MS": "60000"},
    "delivered timer": {"TIMER_OUT_MS": "5"},
    "timer again": {"TIMER_OUT_MS": "5", "TIMER_DELAY_MS": "60000"},
}
TARGETS = ("DUEMQ_MIGRATION", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "../../evil", "rmq_sys_wheel_timer")


@pytest.mark.sampled
@pytest.mark.parametrize("half", [False, True], ids=["plain", "half"])
@pytest.mark.parametrize("delay", DELAYS.values(), ids=DELAYS)
def test_a_forged_target_changes_nothing(tmp_path: Path, delay: dict[str, str], half: bool) -> None:
    clock = FakeClock()
    properties = small(tmp_path, messageDelayLevel="1s 5s", timerWheelEnable="true")

    async def scene() -> None:
        async with running(properties, clock=clock) as (broker, remote):
            assert (await remote.send("T", b"warm")).code == 0
            held = {
                name: broker.store.queue_bounds(name, 0)
                for name in INTERNAL_TOPICS
                if name in ("DUEMQ_MIGRATION", "DUEMQ_QUARANTINE")
            }
            for number, target in enumerate(TARGETS):
                forged = {"REAL_TOPIC": target, "REAL_QID": "0", "UNIQ_KEY": f"U{number}"}
                if half:
                    forged |= {"TRAN_MSG": "true", "PGROUP": "p"}
                sent = await remote.send("T", b"x", **delay, **forged)
                assert sent.code == 0, sent.remark
                if half:
                    end = {
                        "producerGroup": "p",
                        "commitOrRollback": 8,
                        "msgId": f"U{number}",
                        "commitLogOffset": int(sent.fields["msgId"][-16:], 16),
                        "tranStateTableOffset": sent.fields["queueOffset"],
                        "fromTransactionCheck": "false",
                    }
                    assert (await remote.call(37, end)).code == 0
            clock.advance(HOUR_MS)
            for number in range(len(TARGETS) + 1):
                assert (await remote.pull("T", number)).code == 0
            for name, bounds in held.items():
                assert broker.store.queue_bounds(name, 0) == bounds
            assert broker.store.topics.find("../../evil") < 0

    asyncio.run(scene())
    assert not list(tmp_path.glob("**/evil*"))
