"""Schedules, topics, groups, lag, offsets and the state of brokers over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.client import Admin
from tests.duemq.console.test_audit_pages import add_audits
from tests.duemq.http.rig import api

DAY_MS = 86_400_000


async def json_of(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> Any:
    response = await client.request(method, f"/api/v1{path}", **more)
    assert response.status_code == 200, response.text
    return response.json()


def test_schedules(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            for topic in ("T", "U"):
                await json_of(client, "POST", "/topics", json={"name": topic})
            new = {"name": "daily", "topic": "T", "every_ms": DAY_MS, "body": "Yg=="}
            made = await json_of(client, "POST", "/schedules", json=new)
            assert made["created"]
            again = await json_of(client, "POST", "/schedules", json=new)
            assert not again["created"]
            for change in ({"topic": "U"}, {"every_ms": 2 * DAY_MS}):
                other = await client.post("/api/v1/schedules", json={**new, **change})
                assert other.status_code == 409
            unclear = await client.post("/api/v1/schedules", json={**new, "cron": "@daily"})
            assert unclear.status_code == 400
            await json_of(client, "POST", "/schedules", json={**new, "name": "b"})
            page = await json_of(client, "GET", "/schedules?limit=1")
            rest = await json_of(client, "GET", f"/schedules?cursor={page['cursor']}")
            listed = [*page["schedules"], *rest["schedules"]]
            assert [each["definition"]["name"] for each in listed] == ["daily", "b"]
            assert rest["cursor"] is None
            shown = await json_of(client, "GET", "/schedules/daily?runs=3")
            assert len(shown["runs"]) == 3
            assert shown["broker"] == "test"
            assert (await json_of(client, "POST", "/schedules/daily/pause"))["state"] == "paused"
            assert (await json_of(client, "POST", "/schedules/daily/resume"))["state"] == "active"
            triggered = await json_of(client, "POST", "/schedules/daily/trigger")
            assert (triggered["state"], triggered["appended"]) == ("active", 1)
            assert triggered["next_ms"] == shown["next_ms"]
            path = "/schedules/daily/backfill"
            past = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-04T00:00:00Z"}
            counted = await json_of(client, "POST", path, json={**past, "dry_run": True})
            assert counted["appended"] == 3
            assert (await json_of(client, "POST", path, json=past))["appended"] == 3
            for until in ("2999-01-01T00:00:00Z", past["since"]):
                wrong = {**past, "until": until, "dry_run": True}
                assert (await client.post(f"/api/v1{path}", json=wrong)).status_code == 400
            absent = await client.post("/api/v1/schedules/absent/backfill", json=past)
            assert absent.status_code == 404
            for kind in ("topic", "group"):
                absent = await client.get(f"/api/v1/{kind}s/absent")
                assert absent.status_code == 404
                assert absent.json()["type"] == f"urn:duemq:problem:no-{kind}"
            await json_of(client, "DELETE", "/schedules/daily")
            assert (await client.get("/api/v1/schedules/daily")).status_code == 404

    asyncio.run(main())


def test_a_topic_that_exists_keeps_what_is_not_given(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            new = {"name": "T", "read_queues": 16, "write_queues": 12, "message_type": "PRIORITY"}
            made = await json_of(client, "POST", "/topics", json=new)
            assert await json_of(client, "POST", "/topics", json={"name": "T"}) == made
            state = await json_of(client, "POST", "/topics", json={"name": "T", "writable": False})
            [settings] = state["info"]["settings"].values()
            assert (settings["read_queues"], settings["write_queues"]) == (16, 12)
            assert (settings["readable"], settings["writable"]) == (True, False)
            assert settings["attributes"] == {"message.type": "PRIORITY"}
            [settings] = (await json_of(client, "POST", "/topics", json={"name": "U"}))["info"][
                "settings"
            ].values()
            assert (settings["read_queues"], settings["write_queues"]) == (8, 8)

    asyncio.run(main())


def test_topics_groups_and_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (broker, client):
            state = await json_of(client, "POST", "/topics", json={"name": "T", "write_queues": 2})
            assert state["info"]["settings"]
            for _ in range(3):
                await client.post("/api/v1/messages", json={"topic": "T", "body": "b"})
            page = await json_of(client, "GET", "/topics?prefix=T&limit=1")
            assert [each["name"] for each in page["topics"]] == ["T"]
            assert sum(queue["max_offset"] for queue in state["queues"]) == 0
            state = await json_of(client, "GET", "/topics/T")
            assert sum(queue["max_offset"] for queue in state["queues"]) == 3
            assert (await client.get("/api/v1/topics/absent")).status_code == 404
            async with Admin(broker=broker.address) as admin:
                await admin.create_group("G")
            reset = {"topic": "T", "to": "earliest", "dry_run": True}
            planned = await json_of(client, "POST", "/groups/G/offsets", json=reset)
            assert all(each["offset"] == 0 for each in planned["changes"])
            reset = {"topic": "T", "to": "latest"}
            await json_of(client, "POST", "/groups/G/offsets", json=reset)
            lag = await json_of(client, "GET", "/groups/G/lag")
            assert lag["lag"] == 0
            assert sum(queue["max_offset"] for queue in lag["queues"]) == 3
            groups = await json_of(client, "GET", "/groups?prefix=G")
            assert [each["name"] for each in groups["groups"]] == ["G"]
            assert (await json_of(client, "GET", "/groups/G"))["lag"] == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("brokers", None),
        ("replicas", "role"),
        ("timers", "pending"),
        ("levels", "levels"),
        ("audits", "running"),
    ],
)
def test_states_of_brokers(shared_api: httpx.Client, path: str, key: str | None) -> None:
    [row] = shared_api.get(f"/api/v1/{path}").json()["brokers"]
    assert "failure" not in row
    assert row["broker"] == "test"
    assert key is None or key in row["state"]


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


def test_migrations(shared_api: httpx.Client) -> None:
    status = shared_api.get("/api/v1/migrations").json()
    assert "levels" in status
    plan = shared_api.post(
        "/api/v1/migrations", json={"action": "plan", "levels": [3], "dry_run": True}
    )
    assert plan.status_code == 200, plan.text
    refused = shared_api.post("/api/v1/migrations", json={"action": "resume", "levels": [3]})
    assert refused.status_code == 409, refused.text
    absent = shared_api.get("/api/v1/migrations?broker=absent")
    assert absent.status_code == 404


def test_the_limits_of_migrations_are_changed(shared_api: httpx.Client) -> None:
    path = "/api/v1/migrations/limits"
    former = shared_api.post(path, json={"factor": 3}).json()
    changed = shared_api.post(path, json={"rate_per_s": 500, "lateness_ms": 0}).json()
    assert changed == former | {"rate_per_s": 500, "lateness_ms": 0}
    assert shared_api.post(path, json={}).status_code == 400
    assert shared_api.post(path, json={"rate_per_s": -1}).status_code == 400
