"""Configuration and audit log of operators over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from tests.duemq.http.rig import api, json_of
from tests.support.accounts import KEYS, ROOT


def test_keys_have_value_default_and_source(shared_api: httpx.Client) -> None:
    [row] = shared_api.get("/api/v1/configuration").json()["brokers"]
    keys = {each["key"]: each for each in row["keys"]}
    assert len(keys) > 150
    assert (keys["brokerName"]["value"], keys["brokerName"]["source"]) == ("test", "set")
    assert (keys["brokerId"]["value"], keys["brokerId"]["source"]) == ("0", "")
    path = "/api/v1/configuration?prefix=BROKER"
    [every], [changed] = (
        shared_api.get(path + more).json()["brokers"] for more in ("", "&changed=true")
    )
    assert all(each["key"].startswith("broker") for each in every["keys"])
    assert {"brokerId", "brokerName"} <= {each["key"] for each in every["keys"]}
    assert "brokerId" not in {each["key"] for each in changed["keys"]}
    assert "brokerName" in {each["key"] for each in changed["keys"]}


def test_without_accounts_there_is_no_audit_log(shared_api: httpx.Client) -> None:
    response = shared_api.get("/api/v1/operators")
    assert (response.status_code, response.json()["detail"]) == (
        404,
        "the broker has no accounts, and so no audit log",
    )


def test_what_operators_changed_is_listed_in_pages(tmp_path: Path) -> None:
    async def main() -> None:
        auth = (ROOT.access_key, ROOT.secret)
        async with api(tmp_path, auth=auth, **KEYS) as (_, client):
            for name in ("a", "b", "c"):
                assert (await client.post("/api/v1/topics", json={"name": name})).is_success
            first = await json_of(client, "GET", "/operators?limit=2")
            assert [each["account"] or each["resource"] for each in first["entries"]] == [
                "Topic:c",
                "Topic:b",
            ]
            path = f"/operators?limit=2&cursor={first['cursor']}"
            rest = await json_of(client, "GET", path)
            entry = rest["entries"][0]
            assert (entry["broker"], entry["user"], entry["resource"]) == (
                "test",
                "root",
                "Topic:a",
            )
            [row] = (await json_of(client, "GET", "/configuration?prefix=initAuth"))["brokers"]
            assert ROOT.secret not in str(row)

    asyncio.run(main())
