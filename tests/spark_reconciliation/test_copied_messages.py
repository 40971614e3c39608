"""Half messages, retries and dead letters of delayed messages are no deliveries of them.

They keep the properties of the message, as records of Apache's brokers that name no origin do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.incremental.incremental_audit import audit_with_state
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.tables.export import export_stores
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import BrokerClient, running, small

HALF = {"TRAN_MSG": "true", "PGROUP": "p"}
TIMER = {"TIMER_DELAY_MS": "3000"}
CONFIG = AuditConfig(late_ms=30_000)


async def commit(remote: BrokerClient, half: Any) -> None:
    fields = {
        "producerGroup": "p",
        "commitOrRollback": 8,
        "fromTransactionCheck": "false",
        "commitLogOffset": int(half.fields["msgId"][-16:], 16),
        "tranStateTableOffset": half.fields["queueOffset"],
        "msgId": "U",
    }
    assert (await remote.call(RequestCode.END_TRANSACTION, fields)).code == 0


async def send_back(remote: BrokerClient, log_offset: int, level: int) -> None:
    back = {"group": "g", "offset": log_offset, "delayLevel": level}
    assert (await remote.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Return a store with such records, and the results of two audits with saved state."""
    root, clock, summaries = tmp_path_factory.mktemp("copied"), FakeClock(), list[Any]()
    session = LocalSession()

    def audited() -> None:
        state = root / "state"
        summaries.append(audit_with_state(session, str(root / "store"), CONFIG, state))

    async def scene() -> None:
        async with running(small(root), clock=clock) as (broker, remote):
            client = PopClient(remote, clock)
            for number in range(4):
                own = TIMER if number % 2 else {"DELAY": "1"}
                half = await remote.send("T", b"half", UNIQ_KEY=f"H{number}", **HALF, **own)
                if number < 3:
                    await commit(remote, half)
                assert (await remote.send("T", b"m", UNIQ_KEY=f"M{number}", **own)).code == 0
            await advance(broker, clock, 5_000)
            audited()
            first = await client.pop("T", invisibleTime=5_000)
            await advance(broker, clock, 8_000)  # all are retried
            again = await client.pop("T", invisibleTime=60_000)
            assert len(first) == len(again) == 7
            for level, message in zip((-1, -1, 1, 1), first, strict=False):
                await send_back(remote, message.record.phys_offset, level)
            for message in again:
                await client.ack(message)
            await advance(broker, clock, 5_000)
            audited()

    with use_engine_of(session):
        asyncio.run(scene())
    session.stop()
    return root / "store", summaries


def test_the_next_audit_is_incremental(audits: tuple[Path, list[Any]]) -> None:
    _, (before, after) = audits
    assert (after.clean, after.state.full_because) == (True, "")
    assert after.verdicts["ok"] > before.verdicts["ok"] == 7


def test_tables_have_deliveries_only(audits: tuple[Path, list[Any]], tmp_path: Path) -> None:
    store, _ = audits
    export_stores([str(store)], tmp_path)
    rows = ds.dataset(tmp_path / "delivered", partitioning="hive").to_table().to_pylist()
    assert all(row["scheduled_offset"] is not None for row in rows)
    assert max(row["late_ms"] for row in rows) <= 500
    assert Counter(row["topic"] for row in rows) == {"T": 7, "%RETRY%g": 2}
    kinds = {(row["message_id"], row["topic"], row["kind"]) for row in rows}
    sent = ds.dataset(tmp_path / "scheduled", partitioning="hive").to_table().to_pylist()
    assert kinds == {(row["message_id"], row["topic"], row["kind"]) for row in sent}
