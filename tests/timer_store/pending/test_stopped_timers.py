"""PendingDecisions and views while `timerWheelEnable=false` and timers are pending in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duemq.broker.broker import Broker
from duemq.client.decisions import PendingDecisions
from duemq.net.decisions import DecisionRequest
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.errors import DueMQError
from duemq_common.recall_handle import RecallHandle
from tests.migration.bench import Bench
from tests.support.running_broker import BrokerClient, running, small
from timer_store.pending.stopped_timers import NOT_RUNNING, NOTICE

HOUR_MS = 3_600_000
HANDLE = RecallHandle("T", "test", "1", "U0").encode()


def stopped(root: Path, work: Callable[[Any, Any], Awaitable[None]], *, pending: int = 2) -> None:
    """Run `work` on a broker whose timers are switched off, with pending timers in its store."""

    async def run() -> None:
        clock = FakeClock()
        async with running(small(root), clock=clock) as (_, client):
            for n in range(pending):
                due_ms = str(clock.now_ms() + HOUR_MS + n)
                sent = await client.send("T", b"t", UNIQ_KEY=f"U{n}", TIMER_DELIVER_MS=due_ms)
                assert sent.code == 0, sent.remark
            await client.send("T", b"l", UNIQ_KEY="L", KEYS="k", DELAY="5")
        async with running(small(root, timerWheelEnable="false"), clock=clock) as (broker, client):
            await work(broker, client)

    asyncio.run(run())


@pytest.mark.sampled
@pytest.mark.parametrize(
    "names", [{"ids": ["U0"]}, {"handles": [HANDLE]}, {"topic": "T"}, {"ids": ["L", "U1"]}]
)
@pytest.mark.parametrize("action", ["cancel", "move", "fire"])
def test_a_decision_on_a_timer_is_an_error_and_not_unknown(
    tmp_path: Path, names: dict[str, str | list[str]], action: str
) -> None:
    async def work(broker: Broker, client: BrokerClient) -> None:
        extra = {"delay_ms": 5} if action == "move" else {}
        async with PendingDecisions(broker=broker.address) as decisions:
            with pytest.raises(DueMQError, match=NOT_RUNNING):
                await getattr(decisions, action)(**names, **extra)

    stopped(tmp_path, work)


def test_a_decision_on_a_transferred_message_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with running(small(tmp_path), clock=clock) as (broker, client):
            await client.send("T", b"m", UNIQ_KEY="M", DELAY="5")
            bench = Bench(broker, client, clock)
            await bench.command("start", levels=[5])
            await bench.until(5, "done")
        off = small(tmp_path, timerWheelEnable="false")
        async with (
            running(off, clock=clock) as (broker, _),
            PendingDecisions(broker=broker.address) as client,
        ):
            with pytest.raises(DueMQError, match="M may be a pending timer"):
                await client.cancel(ids=["M"])

    asyncio.run(work())


def test_an_error_names_the_number_of_earlier_decisions(tmp_path: Path) -> None:
    async def work(broker: Broker, client: BrokerClient) -> None:
        body = msgspec.json.encode(DecisionRequest(ids=["L"], handles=[HANDLE]))
        response = await client.call(RequestCode.CANCEL_PENDING, body=body)
        assert "1 messages were decided on before" in (response.remark or "")

    stopped(tmp_path, work)


def test_level_messages_can_be_cancelled(tmp_path: Path) -> None:
    async def work(broker: Broker, client: BrokerClient) -> None:
        async with PendingDecisions(broker=broker.address) as decisions:
            [unknown] = await decisions.cancel(ids=["nothing"])
            assert unknown.verdict == "unknown"
            [done] = await decisions.cancel(ids=["L"])
            assert (done.verdict, done.messages) == ("done", 1)

    stopped(tmp_path, work)


def test_a_store_without_pending_timers_is_not_concerned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(broker: Broker, client: BrokerClient) -> None:
        async with PendingDecisions(broker=broker.address) as decisions:
            [done] = await decisions.cancel(topic="T")
            assert (done.verdict, done.messages) == ("done", 1)

    stopped(tmp_path, work, pending=0)
    assert NOTICE not in caplog.text


@pytest.mark.parametrize("view", ["summary", "list", "forecast"])
def test_views_report_why_they_are_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, view: str
) -> None:
    async def work(broker: Broker, client: BrokerClient) -> None:
        response = await client.call(RequestCode.GET_VIEW, {"view": f"timer_store.{view}"})
        assert (response.code, response.remark) == (1, NOT_RUNNING)

    stopped(tmp_path, work)
    assert NOTICE in caplog.text
