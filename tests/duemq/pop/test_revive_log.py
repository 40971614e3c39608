"""Revive log: the acknowledgements of one turn are one batch; each has its own result."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from duemq.pop.checkpoints import AckEntry, Acknowledgement
from duemq.pop.figures import PopFigures
from duemq.pop.revive_log import ROWS_MAX, ReviveLog
from duemq.pop.undecided_pops import UndecidedPops
from duemq.registry.managers import Identity
from duemq_common.clock import FakeClock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from message_store.log.batch import PutBatch

IDENTITY = Identity("broker-a", "DefaultCluster", 0, (bytes([127, 0, 0, 1]), 10_911))


class PutPath:
    """Put path that records the revive queues of each batch, and refuses queues in `refused`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.bodies: list[dict[str, Any]] = []
        self.refused: dict[int, int] = {}
        self.fault: Exception | None = None

    def put(self, batch: PutBatch) -> None:
        if self.fault is not None:
            raise self.fault
        queues = batch.filled["queue_id"].tolist()
        self.batches.append(queues)
        self.bodies = [json.loads(batch.body(row)) for row in range(batch.count)]
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


def entry(queue: int, *offsets: int, pop_ms: int = 1) -> AckEntry:
    return queue, Acknowledgement(
        topic="T",
        group="g",
        queue_id=0,
        start_offset=0,
        pop_ms=pop_ms,
        offsets=offsets or (0,),
        broker_name="broker-a",
        due_ms=60_000,
    )


def outcomes_of(log: ReviveLog, entries: list[AckEntry]) -> list[Any]:
    async def main() -> list[Any]:
        puts = [log.acknowledge(*each) for each in entries]
        return await asyncio.gather(*puts, return_exceptions=True)

    return asyncio.run(main())


def outcomes(log: ReviveLog, *queues: int) -> list[Any]:
    return outcomes_of(log, [entry(queue) for queue in queues])


def test_acknowledgements_of_one_checkpoint_are_one_record(path: PutPath, log: ReviveLog) -> None:
    entries = [entry(0, 3), entry(0, 1), entry(1, 1), entry(0, 3), entry(0, 2, pop_ms=2)]
    assert outcomes_of(log, entries) == [None] * 5
    assert path.batches == [[0, 1, 0]]
    assert [body["aol"] for body in path.bodies if "aol" in body] == [[3, 1]]
    assert [body["ao"] for body in path.bodies] == [-1, 1, 2]


def test_acknowledgements_of_one_checkpoint_are_refused_together(
    path: PutPath, log: ReviveLog
) -> None:
    path.refused = {0: ResponseCode.SYSTEM_ERROR}
    first, other, second = outcomes_of(log, [entry(0, 3), entry(1, 3), entry(0, 1)])
    assert other is None
    assert [type(each) for each in (first, second)] == [RequestError] * 2


def test_records_of_one_turn_are_one_batch(path: PutPath, log: ReviveLog) -> None:
    assert outcomes(log, 0, 1, 2) == [None] * 3
    assert outcomes(log, 3) == [None]
    assert path.batches == [[0, 1, 2], [3]]


def test_the_records_of_a_batch_are_limited(path: PutPath, log: ReviveLog) -> None:
    assert outcomes_of(log, [entry(0, pop_ms=each) for each in range(ROWS_MAX + 1)])
    assert [len(batch) for batch in path.batches] == [ROWS_MAX, 1]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER),
        (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_refused_record_does_not_affect_others_of_its_turn(
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


def test_a_failed_append_fails_all_records_of_the_turn(path: PutPath, log: ReviveLog) -> None:
    path.fault = OSError(28, "no space left")
    assert outcomes(log, 0, 1) == [path.fault] * 2
    path.fault = None
    assert outcomes(log, 0) == [None]


@pytest.mark.parametrize("number", [0, 1], ids=["of its checkpoint", "of another"])
def test_a_cancelled_caller_does_not_affect_others(
    path: PutPath, log: ReviveLog, number: int
) -> None:
    async def main() -> None:
        cancelled_caller = asyncio.create_task(log.acknowledge(*entry(0)))
        other = asyncio.create_task(log.acknowledge(*entry(number)))
        await asyncio.sleep(0)
        cancelled_caller.cancel()
        await other
        assert cancelled_caller.cancelled()

    asyncio.run(main())
    assert path.batches == [sorted({0, number})]
