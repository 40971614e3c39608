"""Recurring schedules over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.duemq.http.rig import api, json_of

DAY_MS = 86_400_000


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
