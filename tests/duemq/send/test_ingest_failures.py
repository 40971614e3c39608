"""If responses to a batch fail, the batch is put once, and its connections are closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.send.responses import SendResponses
from duemq_common.errors import RequestError
from duemq_common.request import Request
from tests.duemq.net.conftest import Run
from tests.duemq.send.test_ingest import Bench, fast, plain, responses
from tests.support.raw_connection import WAIT_S
from tests.support.send_path import SendPath


@pytest.mark.finding("P:ingest-finish")
@pytest.mark.parametrize("way", [fast, plain])
def test_a_batch_whose_responses_fail_is_appended_once(
    run: Run, way: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failures = SendResponses.respond, [ValueError("broken answers")]

    def response(self: SendResponses, *values: Any) -> None:
        if failures:
            raise failures.pop()
        real(self, *values)

    monkeypatch.setattr(SendResponses, "respond", response)

    async def main() -> None:
        front = SendPath()
        bench = Bench(front)
        async with bench as peer:
            peer.send(way(1))
            async with asyncio.timeout(WAIT_S):
                assert await peer.reader.read() == b""
            async with await type(peer).connect(bench.server.ports[0]) as other:
                other.send(way(2))
                found = await responses(other, 1)
        assert {opaque: each.code for opaque, each in found.items()} == {2: 0}
        assert front.log.bodies == [b"1", b"2"]

    run(main())
    assert "responding to 1 messages failed; connections closed" in caplog.text


@pytest.mark.finding("P:ingest-finish")
def test_an_interrupted_turn_discards_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    front = SendPath()
    ingest = front.ingest

    def interrupted(self: SendResponses, *values: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SendResponses, "respond", interrupted)
    ingest._batch.add(
        topic_index=0,
        queue_id=0,
        body=b"1",
        properties=b"",
        born_ms=0,
        born_host=(b"\x7f\0\0\1", 1),
        store_host=(b"\x7f\0\0\1", 1),
    )
    ingest._use_batch()
    with pytest.raises(KeyboardInterrupt):
        ingest.run_turn()
    assert front.log.bodies == [b"1"]
    monkeypatch.undo()
    ingest.run_turn()
    assert front.log.bodies == [b"1"]


@pytest.mark.parametrize("way", [fast, plain])
def test_access_is_checked_before_a_send_is_stored(run: Run, way: Any) -> None:
    class Refusing:
        version = 0

        def __call__(self, request: Request) -> None:
            if request.fields["b"] == "T":
                raise RequestError(16, "no permission")

        def secret(self, access_key: str) -> None:
            return None

    async def main() -> None:
        front = SendPath()
        access = Refusing()
        front.ingest = front.new_ingest(access=access)
        async with Bench(front) as peer:
            peer.send(way(1))
            peer.send(way(2, topic="TBW102"))
            found = await responses(peer, 2)
        assert {opaque: each.code for opaque, each in found.items()} == {1: 16, 2: 0}

    run(main())
