"""Consumers that cannot be served learn it from the answer, operators from the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from delivery.plugin import Request
from duemq.pull.unsupported import UNSERVED, WARN_MS, UnservedProcessor
from message_store.clock import FakeClock
from tests.support.running_broker import running, small

SET_MODE = 401


@pytest.mark.finding("D6")
def test_warnings_are_limited_to_one_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    processor = UnservedProcessor(clock)

    async def main() -> None:
        for _ in range(3):
            answer = await processor.refuse(Request(SET_MODE, {}))
            assert answer.code == 3
            assert (
                "this request of POP consumption is not served; use a push or pull consumer"
                in answer.remark
            )
        clock.advance(WARN_MS)
        await processor.refuse(Request(SET_MODE, {}))
        await processor.refuse(Request(400, {}))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    texts = [record.getMessage() for record in caplog.records]
    assert [f"({n} such requests so far)" in text for n, text in zip((1, 4, 1), texts, strict=True)]
    assert processor.counts == {SET_MODE: 4, 400: 1}


def test_a_broker_refuses_each_of_them(tmp_path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (_, asker):
            for code, (name, _) in UNSERVED.items():
                answer = await asker.ask(code)
                assert answer.code == 3
                assert name in answer.remark

    asyncio.run(main())
