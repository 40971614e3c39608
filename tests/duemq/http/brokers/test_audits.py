"""Audits of a broker's store over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.duemq.console.test_audit_pages import add_audits
from tests.duemq.http.rig import api, json_of


def test_audits_of_the_ledger_and_the_findings_of_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (broker, client):
            add_audits(broker, "its record was removed")
            page = await json_of(client, "GET", "/audit-runs")
            assert [each["audit_id"] for each in page["audits"]] == [
                "audit-3",
                "audit-2",
                "audit-1",
            ]
            one = await json_of(client, "GET", "/audit-runs/audit-2")
            assert one["audit"]["verdicts"] == {"ok": 5, "lost": 2}
            assert (await client.get("/api/v1/audit-runs/absent")).status_code == 404

    asyncio.run(main())


def test_an_audit_is_started(tmp_path: Path) -> None:
    async def endless(command: list[str], *, seconds_max: float) -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        async with api(tmp_path) as (broker, client):
            plugin: Any = broker.plugins.plugins["reconciliation"]
            plugin.run_command = endless  # a process may end before the second request
            started = await client.post("/api/v1/audits")
            assert started.status_code == 202, started.text
            assert (await client.post("/api/v1/audits?broker=absent")).status_code == 404
            again = await client.post("/api/v1/audits")
            assert again.status_code == 409
            assert again.json()["detail"] == "an audit runs: wait for its end"

    asyncio.run(main())
