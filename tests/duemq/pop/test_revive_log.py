"""Revive log: acknowledgements of one turn of the loop are one batch, each with its own result."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from duemq.net.codes import ResponseCode
from duemq.pop.checkpoints import Acknowledgement
from duemq.pop.figures import PopFigures
from duemq.pop.revive_log import ROWS_MAX, Entry, ReviveLog
from duemq.pop.undecided_pops import UndecidedPops
from duemq.ports import Identity
from message_store.clock import FakeClock
from message_store.errors import RequestError
from message_store.log.batch import PutBatch

IDENTITY = Identity("broker-a", "DefaultCluster", 0, (bytes([127, 0, 0, 1]), 10_911))


class PutPath:
    """Keeps the revive queues of each batch; refuses rows of queues in `refused`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.refused: dict[int, int] = {}
        self.fault: Exception | None = None

    def put(self, batch: PutBatch) -> None:
        if self.fault is not None:
            raise self.fault
        queues = batch.filled["queue_id"].tolist()
        self.batches.append(queues)
        for row, queue in enumerate(queues):
            if status := self.refused.get(queue):
                batch.refuse(row, status, "why")
                if batch.together:
                    batch.rows["status"][: batch.count] = status


@pytest.fixture
def path() -> PutPath:
    return PutPath()


@pytest.fixture
def log(path: PutPath) -> ReviveLog:
    store: Any = SimpleNamespace(topics=SimpleNamespace(add=lambda name: 0))
    fake: Any = path
    return ReviveLog(store, fake, UndecidedPops(store), IDENTITY, FakeClock(), PopFigures(0))


def entry(queue: int, *offsets: int) -> Entry:
    return queue, Acknowledgement(
        topic="T", group="g", queue_id=0, start_offset=0, pop_ms=1, offsets=offsets or (0,),
        broker_name="broker-a", due_ms=60_000,
    )  # fmt: skip


def outcomes(log: ReviveLog, *queues: int) -> list[Any]:
    async def main() -> list[Any]:
        puts = [log.put_in_turn(entry(queue)) for queue in queues]
        return await asyncio.gather(*puts, return_exceptions=True)

    return asyncio.run(main())


def test_records_of_one_turn_are_one_batch(path: PutPath, log: ReviveLog) -> None:
    assert outcomes(log, 0, 1, 2) == [None] * 3
    assert outcomes(log, 3) == [None]
    assert path.batches == [[0, 1, 2], [3]]


def test_a_batch_has_a_limit(path: PutPath, log: ReviveLog) -> None:
    assert outcomes(log, *([0] * (ROWS_MAX + 1))) == [None] * (ROWS_MAX + 1)
    assert [len(batch) for batch in path.batches] == [ROWS_MAX, 1]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER),
        (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_refused_record_refuses_no_other_of_its_turn(
    path: PutPath, log: ReviveLog, status: int, code: int
) -> None:
    path.refused = {1: status}
    first, refused, last = outcomes(log, 0, 1, 2)
    assert (first, last) == (None, None)
    assert isinstance(refused, RequestError)
    assert refused.code == code


def test_records_that_are_put_together_are_refused_together(path: PutPath, log: ReviveLog) -> None:
    path.refused = {1: ResponseCode.SYSTEM_ERROR}
    with pytest.raises(RequestError):
        log.put([entry(0), entry(1)])


def test_a_fault_ends_all_records_of_the_turn(path: PutPath, log: ReviveLog) -> None:
    path.fault = OSError(28, "no space left")
    assert outcomes(log, 0, 1) == [path.fault] * 2
    path.fault = None
    assert outcomes(log, 0) == [None]


def test_a_caller_that_has_gone_stops_no_other(path: PutPath, log: ReviveLog) -> None:
    async def main() -> None:
        gone = asyncio.create_task(log.put_in_turn(entry(0)))
        other = asyncio.create_task(log.put_in_turn(entry(1)))
        await asyncio.sleep(0)
        gone.cancel()
        await other
        assert gone.cancelled()

    asyncio.run(main())
    assert path.batches == [[0, 1]]
