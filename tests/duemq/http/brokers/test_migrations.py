"""Migrations of levels to timers over HTTP."""

from __future__ import annotations

import httpx


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
