"""Put path: order of hooks, refusals, failures, confirmation."""

from __future__ import annotations

import asyncio

import pytest

from duemq.send.put_path import PutPath
from duemq_common.clock import FakeClock
from message_store.hooks import PutHook
from message_store.log.batch import PutBatch
from tests.support.send_path import BORN, HOME, FakeLog


def batch_of(*properties: bytes) -> PutBatch:
    batch = PutBatch(4)
    for text in properties:
        batch.add(
            topic_index=0,
            queue_id=0,
            body=b"b",
            properties=text,
            born_ms=0,
            born_host=BORN,
            store_host=HOME,
        )
    return batch


def test_hooks_run_in_order_before_the_append() -> None:
    seen: list[tuple[str, int]] = []

    def first(batch: PutBatch, now_ms: int) -> None:
        seen.append(("first", now_ms))
        batch.refuse(0, 13, "no")

    def second(batch: PutBatch, now_ms: int) -> None:
        seen.append(("second", int(batch.rows[0]["status"])))

    store, clock = FakeLog(), FakeClock()
    batch = batch_of(b"", b"")
    PutPath(store, [first, second], clock).put(batch)
    assert seen == [("first", clock.now_ms()), ("second", 13)]
    assert store.bodies == [b"b"]
    assert batch.rows[1]["phys_offset"] == 0


def test_no_hook_runs_while_the_store_refuses_messages() -> None:
    """Plugins do not run on a replica."""

    def hook(batch: PutBatch, now_ms: int) -> None:
        raise AssertionError

    path = PutPath(FakeLog(refusal="a replica"), [hook], FakeClock())
    batch = batch_of(b"")
    path.put(batch)
    path.run_hooks(batch)
    assert not batch.remarks


@pytest.mark.parametrize("where", ["hook", "store"])
def test_a_failure_refuses_the_rows_without_a_result(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(batch: PutBatch, now_ms: int) -> None:
        raise ValueError("broken hook")

    store = FakeLog(failure=ValueError("broken store") if where == "store" else None)
    hooks: list[PutHook] = [broken] if where == "hook" else []
    batch = batch_of(b"", b"")
    batch.refuse(0, 16, "refused before")
    PutPath(store, hooks, FakeClock()).put(batch)
    assert batch.filled["status"].tolist() == [16, 1]
    assert f"broken {where}" in batch.remarks[1]
    assert "appending a batch of 2 messages failed" in caplog.text


@pytest.mark.parametrize(
    ("texts", "waits"),
    [
        ((b"WAIT\x01false\x02",), False),
        ((b"WAIT\x01false\x02", b""), True),
        ((b"WAIT\x01true\x02",), True),
    ],
)
def test_put_confirmed_waits_for_the_disk(texts: tuple[bytes, ...], waits: bool) -> None:
    async def main() -> None:
        store = FakeLog(syncs=True)
        put = asyncio.ensure_future(PutPath(store, [], FakeClock()).put_confirmed(batch_of(*texts)))
        await asyncio.sleep(0)
        assert put.done() != waits
        store.may_sync.set()
        await put

    asyncio.run(main())


def test_a_late_sync_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeLog(syncs=False)
    store.may_sync.set()
    asyncio.run(PutPath(store, [], FakeClock()).put_confirmed(batch_of(b"")))
    assert "the disk did not sync it in time" in caplog.text


def test_a_client_batch_is_refused_as_a_whole() -> None:
    def malformed(batch: PutBatch, now_ms: int) -> None:
        batch.refuse(3, 13, "too far")

    store, batch = FakeLog(), batch_of(*[b""] * 7)
    batch.together = [(0, 2), (2, 3), (5, 1)]
    assert [batch.group_end(index) for index in range(7)] == [2, 2, 5, 5, 5, 6, 7]
    PutPath(store, [malformed], FakeClock()).put(batch)
    assert batch.filled["status"].tolist() == [0, 0, 13, 13, 13, 0, 0]
    assert batch.remarks == dict.fromkeys((2, 3, 4), "too far")
    batch.clear()
    assert batch.together == []
