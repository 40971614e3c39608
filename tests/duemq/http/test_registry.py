"""Topics, groups, lag and offsets over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duemq.client import Admin
from tests.duemq.http.rig import api, json_of


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
