"""Fires and moves of a running broker: due times, and records that are destroyed afterwards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from spark_reconciliation.audit.rules import RECORD_GONE
from spark_reconciliation.audit.summary import summarize
from spark_reconciliation.spark.read import audit_stores, count_stores
from tests.support.plain_store import PlainStore, Record
from tests.support.running_broker import BrokerClient, running, small

HOUR_MS = 3_600_000
PASSED = "its owner passed it without a delivery"
EXPECTED = {
    "cancelled timer": ("cancelled", "cancelled in time"),
    "cancelled level": ("cancelled", "cancelled in time"),
    "fired timer": ("moved", "delivered early on request"),
    "fired level": ("moved", "delivered early on request"),
    "moved timer": ("pending", "not due, or not reached by its owner yet"),
    "moved level": ("pending", "not due, or not reached by its owner yet"),
    "fired timer, lost": ("lost", RECORD_GONE),
    "fired level, lost": ("lost", RECORD_GONE),
    "moved timer, lost": ("lost", RECORD_GONE),
    "moved level, lost": ("lost", PASSED),  # no record follows the copy
}
"""Verdict and reason by body."""
CODES = {
    "cancelled": RequestCode.CANCEL_PENDING,
    "fired": RequestCode.FIRE_PENDING,
    "moved": RequestCode.MOVE_PENDING,
}


async def use(remote: BrokerClient, clock: FakeClock) -> None:
    """Send a message for each row of EXPECTED, and decide about it."""
    for text in EXPECTED:
        due = {"TIMER_DELIVER_MS": str(clock.now_ms() + 2 * HOUR_MS)}
        delay = due if "timer" in text else {"DELAY": "2"}
        sent = await remote.send("T", text.encode(), UNIQ_KEY=text, **delay)
        command: dict[str, Any] = {"ids": [(sent.fields or {})["msgId"]]}
        code = CODES[text.split()[0]]
        if code == RequestCode.MOVE_PENDING:
            command["deliver_ms"] = clock.now_ms() + HOUR_MS
        response = await remote.call(code, {}, json.dumps(command).encode())
        assert response.code == 0, response.remark
        assert [one["verdict"] for one in json.loads(bytes(response.body))["results"]] == ["done"]


def is_answer(record: Record) -> bool:
    """Return whether a record is the delivery of a fire, or the copy of a move."""
    return record.origin is not None and record.body.decode() in EXPECTED


def test_the_audit_demands_the_record_before_a_marker(engine: Any, tmp_path: Path) -> None:
    async def scene() -> None:
        clock = FakeClock()
        properties = small(tmp_path, messageDelayLevel="1s 2h")
        async with running(properties, clock=clock) as (_, remote):
            await use(remote, clock)

    asyncio.run(scene())
    store = PlainStore(tmp_path / "store")
    firsts = [one for one in store.records() if one.origin is None and one.topic != "T"]
    texts = {one.log_offset: one.body.decode() for one in firsts}
    for record in store.records():
        if is_answer(record) and "lost" in record.body.decode():
            store.log.write(record.log_offset, bytes(record.size))
    verdicts, _ = audit_stores(engine, [str(store.root)])
    rows = {row["root"]: (row["verdict"], row["why"]) for row in verdicts.collect()}
    assert {text: rows[offset] for offset, text in texts.items()} == EXPECTED


DELIVERED_MS = {  # after the start: due time, and delivery
    "fired timer": (0, 0),
    "fired level": (0, 0),
    "moved timer": (HOUR_MS, HOUR_MS),
    "moved level": (HOUR_MS, HOUR_MS),
    "moved timer, to the past": (0, 0),
    "moved level, to the past": (0, 0),
    "timer": (2 * HOUR_MS, 2 * HOUR_MS),
    "level": (2 * HOUR_MS, 2 * HOUR_MS),
}


async def use_until_delivered(remote: BrokerClient, clock: FakeClock) -> None:
    """Send a message for each row of DELIVERED_MS, decide about it, and deliver it."""
    start_ms = clock.now_ms()
    for text, (due_ms, _) in DELIVERED_MS.items():
        timer = {"TIMER_DELIVER_MS": str(start_ms + 2 * HOUR_MS)}
        delay = timer if "timer" in text else {"DELAY": "2"}
        sent = await remote.send("T", text.encode(), UNIQ_KEY=text, **delay)
        if text.split()[0] not in CODES:
            continue
        command: dict[str, Any] = {"ids": [(sent.fields or {})["msgId"]]}
        if text.startswith("moved"):
            command["deliver_ms"] = start_ms + due_ms - ("past" in text)
        response = await remote.call(CODES[text.split()[0]], {}, json.dumps(command).encode())
        assert [one["verdict"] for one in json.loads(bytes(response.body))["results"]] == ["done"]
    for step in range(1, 3):
        clock.advance(HOUR_MS)
        due = [ms <= step * HOUR_MS for ms, _ in DELIVERED_MS.values()]
        assert (await remote.pull("T", sum(due) - 1)).code == 0  # waits for the last of them


def test_the_due_time_of_a_fired_message_is_that_of_the_fire(engine: Any, tmp_path: Path) -> None:
    clock = FakeClock()
    start_ms = clock.now_ms()

    async def scene() -> None:
        properties = small(tmp_path, messageDelayLevel="1s 2h")
        async with running(properties, clock=clock) as (_, remote):
            await use_until_delivered(remote, clock)

    asyncio.run(scene())
    stores = [str(tmp_path / "store")]
    verdicts, unread = audit_stores(engine, stores)
    rows = {row["unique_id"]: row for row in verdicts.collect()}
    assert {
        text: (row["due_ms"] - start_ms, row["delivered_ms"] - start_ms)
        for text, row in rows.items()
    } == DELIVERED_MS
    assert {row["late_ms"] for row in rows.values()} == {0}
    assert {text: row["verdict"] for text, row in rows.items()} == {
        text: "moved" if text.split()[0] in CODES else "ok" for text in DELIVERED_MS
    }
    brief, _ = count_stores(engine, stores)
    for summary in (summarize(verdicts, unread), summarize(brief.rest, None, kept=brief.kept)):
        assert summary.lateness_ms == {"p50": 0, "p99": 0, "max": 0}
