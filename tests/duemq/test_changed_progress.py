"""Another program changes the progress of transactions in consumerOffset.json."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from duemq_common.json_dialect import dumps, loads
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from tests.support.running_broker import running, small

KEY, OP_KEY = f"{HALF_TOPIC}@{TRANSACTION_GROUP}", f"{OP_HALF_TOPIC}@{TRANSACTION_GROUP}"
HUGE = 2**63 - 1
END = {"producerGroup": "p", "commitOrRollback": 8, "fromTransactionCheck": "true"}


@pytest.mark.sampled
@pytest.mark.finding("3D4")
@pytest.mark.parametrize(
    "offsets",
    [(1, 1), (2, 1), (HUGE, HUGE), (-5, -1), (0, HUGE), (HUGE, 0), None],
    ids=str,
)
def test_open_transactions_end_once(
    tmp_path: Path, offsets: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock, properties = FakeClock(), small(tmp_path)
    path = tmp_path / "store" / "config" / "consumerOffset.json"

    async def first() -> list[dict[str, object]]:
        ends = []
        async with running(properties, clock=clock) as (_, remote):
            for number in range(3):
                key = f"TX{number}"
                half = await remote.send(
                    "T", b"%d" % number, TRAN_MSG="true", PGROUP="p", UNIQ_KEY=key
                )
                ends.append(
                    END
                    | {"msgId": key, "transactionId": key}
                    | {
                        "commitLogOffset": int(half.fields["msgId"][-16:], 16),
                        "tranStateTableOffset": half.fields["queueOffset"],
                    }
                )
            assert (await remote.call(37, ends[0])).code == 0
        return ends

    async def second(ends: list[dict[str, object]]) -> None:
        async with running(properties, clock=clock) as (broker, remote):
            for end in ends:
                assert (await remote.call(37, end)).code == 0
            assert broker.store.queue_bounds("T", 0)[1] == 3
            pulled = await remote.pull("T", 0)
            body = bytes(pulled.body)
            assert all(b"TX%d" % n in body for n in range(3))

    ends = asyncio.run(first())
    if offsets is not None:
        value = loads(path.read_text())
        value["offsetTable"] |= {KEY: {0: offsets[0]}, OP_KEY: {0: offsets[1]}}
        path.write_text(dumps(value))
    with caplog.at_level(logging.ERROR):
        asyncio.run(second(ends))
    assert ("another program has changed the progress" in caplog.text) == (offsets is not None)
