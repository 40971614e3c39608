"""Quarantine and dead letters over HTTP: listed in pages, and sent again once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from duemq.client import Admin, Message, Producer
from tests.duemq.client.admin.test_admin import broker_has, make_dead_letter
from tests.duemq.http.rig import api, json_of
from tests.support.running_broker import TIMEOUT_S


def test_dead_letters_are_listed_in_pages_and_sent_again_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            api(tmp_path) as (broker, client),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
        ):
            admin = Admin(client=producer.client)
            sent = await producer.send(Message("T", b"b"))
            await admin.create_group("g")
            for _ in range(3):
                await make_dead_letter(admin, "g", "T")
            [group] = (await json_of(client, "GET", "/dead-letters"))["groups"]
            assert (group["group"], group["messages"]) == ("g", 3)
            first = await json_of(client, "GET", "/dead-letters/g?limit=2")
            rest = await json_of(client, "GET", f"/dead-letters/g?cursor={first['cursor']}")
            rows = first["messages"] + rest["messages"]
            assert [row["name"] for row in rows] == ["test/0", "test/1", "test/2"]
            assert {row["unique_id"] for row in rows} == {sent.message_id}
            assert rest["cursor"] is None
            empty = await json_of(client, "GET", "/dead-letters/g?topic=U")
            assert (empty["messages"], empty["cursor"]) == ([], None)

            async def resend(**body: Any) -> list[str]:
                path = "/dead-letters/g/resend"
                page = await json_of(client, "POST", path, json=body)
                return [row["status"] for row in page["results"]]

            assert await resend(dry_run=True) == ["would be sent"] * 3
            assert await resend(names=["test/1"]) == ["sent"]
            await broker_has(admin, "T", sent.message_id, 2)
            assert await resend() == ["sent", "already sent", "sent"]
            await broker_has(admin, "T", sent.message_id, 4)
            assert await resend() == ["already sent"] * 3
            quarantine = await json_of(client, "GET", "/quarantine")
            assert quarantine == {"messages": [], "cursor": None, "unknown": []}
            wrong = await client.get("/api/v1/quarantine?cursor=9.")
            assert wrong.status_code == 400

    asyncio.run(main())
