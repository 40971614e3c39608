"""Rate limit of log lines about peers, and the count of suppressed lines."""

from __future__ import annotations

import asyncio
import logging

import pytest

from duemq.net.notices import BURST_LINES, Notices

log = logging.getLogger(__name__)


def test_lines_beyond_the_burst_are_suppressed_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        notices = Notices(log)
        for number in range(1_000):
            notices("peer %d", number)
        assert len(caplog.records) == BURST_LINES
        assert notices.suppressed == 1_000 - BURST_LINES
        loop_s = asyncio.get_running_loop().time()
        notices._refilled_s = loop_s - 1.0
        notices("the next")
        assert [r.getMessage() for r in caplog.records[-2:]] == [
            "980 lines similar to the next were suppressed",
            "the next",
        ]

    asyncio.run(main())
