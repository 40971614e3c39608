"""Comparison with outside tables after retention has removed the first records of messages."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from spark_reconciliation.jobs.outside import TableComparison
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.spark.outside_tables import OutsideTable
from tests.spark_reconciliation.conftest import IN_TEST_ALL, session_of_each
from tests.spark_reconciliation.jobs.test_outside import write_table
from tests.support.pop_client import advance
from tests.support.running_broker import BrokerClient, running, small
from tests.support.stores import open_store, put_one

engine = session_of_each(IN_TEST_ALL, "local")
HOUR_MS, SOON_MS = 3_600_000, 3_000
FILLER = b"x" * 20_000
COPIES_MAX = 1_000  # turns of a compaction
SENT = {  # outcome of each message; those of the second line keep their first record
    **{"delivered": "removed", "cancelled": "cancelled", "moved": "pending", "copied": "pending"},
    **{"fired": "removed", "other": "accepted_with_other_time", "fired_later": "moved"},
    **{"plain": "accepted_without_delay", "never": "never_accepted", "early": "ok"},
}
RECEIVED = {
    **dict.fromkeys(("delivered", "fired", "fired_later"), "consumed"),
    **{"other": "not_consumed", "early": "consumed_early", "stranger": "unknown_to_broker"},
    **{"plain": "without_delay", "gone": "before_store"},
}


class Campaign:
    """Messages of a broker, and the rows of their producer."""

    def __init__(self, broker: Any, remote: BrokerClient, clock: FakeClock) -> None:
        self.broker, self.remote, self.clock = broker, remote, clock
        self.sent: list[dict[str, Any]] = []

    async def send(self, name: str, delay_ms: int, *, other_ms: int = 0) -> None:
        due_ms = self.clock.now_ms() + delay_ms
        own = {"UNIQ_KEY": name, "KEYS": f"key {name}"}
        own |= {"TIMER_DELIVER_MS": str(due_ms)} if delay_ms else {}
        assert (await self.remote.send("T", b"m", **own)).code == 0
        self.note(name, due_ms + other_ms)

    def note(self, name: str, due_ms: int) -> None:
        self.sent.append({"id": name, "key": name, "topic": "T", "time": due_ms})

    async def decide(self, code: int, name: str, **more: Any) -> None:
        body = json.dumps({"ids": [name], "topic": "T", **more}).encode()
        response = await self.remote.call(code, {}, body)
        assert json.loads(bytes(response.body))["results"][0]["verdict"] == "done"

    async def remove_first_files(self) -> None:
        """Let a compaction copy the pending timers, and retention remove the log before them."""
        store = self.broker.store
        for file in store.log.files[:-1]:
            os.utime(file.path, (0, 0))
        response = await self.remote.call(RequestCode.COMPACT_TIMERS, body=b"{}")
        assert json.loads(bytes(response.body))["started"]
        timers = self.broker.plugins.plugins["timer_store"].parts
        for _ in range(COPIES_MAX):
            await advance(self.broker, self.clock, 10)
            if not timers.timers.compaction.running:
                break
        await timers.keeper.persist()
        assert store.retention.clean()
        assert store.min_offset > 0


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Campaign]:
    root, clock, made = tmp_path_factory.mktemp("retention"), FakeClock(), list[Campaign]()

    async def scene() -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            made.append(one := Campaign(broker, remote, clock))
            await one.send("delivered", SOON_MS)
            for name in ("cancelled", "moved", "copied", "fired"):
                await one.send(name, HOUR_MS)
            for _ in range(8):
                await remote.send("T", FILLER)
            await advance(broker, clock, SOON_MS)
            await one.send("plain", 0)
            await one.send("other", SOON_MS, other_ms=9_000)
            await one.send("early", SOON_MS)
            await one.send("fired_later", HOUR_MS)
            one.note("never", clock.now_ms() + HOUR_MS)
            await one.decide(RequestCode.CANCEL_PENDING, "cancelled")
            await one.decide(RequestCode.MOVE_PENDING, "moved", delay_ms=2 * HOUR_MS)
            for name in ("fired", "fired_later"):
                await one.decide(RequestCode.FIRE_PENDING, name)
            await advance(broker, clock, SOON_MS)
            await one.remove_first_files()

    asyncio.run(scene())
    return root / "store", made[0]


@pytest.mark.parametrize("columns", ["id=id", "key=key"])
def test_messages_without_their_first_record_have_their_names(
    engine: Any, campaign: tuple[Path, Campaign], tmp_path: Path, columns: str
) -> None:
    store, made = campaign
    received = [
        {"id": name, "key": name, "topic": "T", "time": made.clock.now_ms() + 1}
        for name in RECEIVED
        if name != "other"
    ]
    early = next(row for row in received if row["id"] == "early")
    early["time"] = made.sent[0]["time"] + 1  # that of its promise is later
    gone = next(row for row in received if row["id"] == "gone")
    gone["time"] = made.sent[0]["time"] - HOUR_MS
    tables = {
        name: OutsideTable.parse(write_table(tmp_path / f"{name}.parquet", rows), columns, "")
        for name, rows in (("sent", made.sent), ("received", received))
    }
    request = AuditRequest(
        stores=(str(store),), out=str(tmp_path / "out"), comparison=TableComparison(**tables)
    )
    run_audit(engine, request, FakeClock(made.clock.now_ms() + 1))
    for table, expected in (("sent", SENT), ("received", RECEIVED)):
        rows = parquet.read_table(f"{tmp_path}/out-{table}").to_pylist()
        outcomes = {row["name"]: row["outcome"] for row in rows if row["name"] != "key"}
        if "key" in columns:  # an unknown name of two keys
            outcomes = {name: text for name, text in outcomes.items() if name in expected}
        assert outcomes == expected


@pytest.mark.parametrize("engine", [IN_TEST_ALL, "local"], indirect=True)
def test_a_store_without_retention_does_not_date_that_of_another(
    engine: Any, tmp_path: Path
) -> None:
    """The message may have been in the removed file, although the other store is older."""
    clock = FakeClock()
    with open_store(tmp_path / "complete", clock) as store:
        put_one(store, "T")
    due_ms = clock.now_ms() + HOUR_MS
    clock.set_ms(due_ms + HOUR_MS)
    with open_store(tmp_path / "truncated", clock) as store:
        for _ in range(5):
            put_one(store, "T", body=FILLER[:15_000])
    oldest, _ = sorted((tmp_path / "truncated" / "commitlog").iterdir())
    oldest.unlink()
    sent = OutsideTable(
        write_table(tmp_path / "s.jsonl", [{"id": "A", "topic": "T", "time": due_ms}])
    )
    request = AuditRequest(
        stores=(str(tmp_path / "complete"), str(tmp_path / "truncated")),
        comparison=TableComparison(sent=sent),
    )
    [proof] = run_audit(engine, request, clock).outside
    assert proof.outcomes == {"before_store": 1}
