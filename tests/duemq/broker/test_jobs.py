"""Periodic writes of tables: a failing disk is one log line per cause."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from duemq.broker.jobs import with_reports


def test_a_failure_is_reported_once_per_cause_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full, broken = OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "I/O error")
    outcomes = [None, full, full, broken, None, None]

    async def write() -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    async def main() -> None:
        job = with_reports(write, "consumer offsets")
        while outcomes:
            await job()

    caplog.set_level(logging.INFO)
    asyncio.run(main())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "ERROR",
            "consumer offsets cannot be written; it is tried again: [Errno 28] No space left",
        ),
        ("ERROR", "consumer offsets cannot be written; it is tried again: [Errno 5] I/O error"),
        ("INFO", "consumer offsets: written again"),
    ]


def test_other_errors_are_raised() -> None:
    async def write() -> None:
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        asyncio.run(with_reports(write, "consumer offsets")())
