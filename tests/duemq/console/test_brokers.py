"""The console with a broker that is away: its part is unknown, the other parts are shown."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import timedelta
from pathlib import Path

from duemq.client import Admin, Message, Producer
from recurring_schedules.definition import Definition
from tests.duemq.console.cluster import Cluster, clustered

UNKNOWN = "Unknown: a broker did not report its part."
NEXT = re.compile(r'rel="next" href="/console([^"]+)"')


async def prepare(cluster: Cluster) -> None:
    """Create on each broker a topic, a group, a schedule and a pending message."""
    for broker in (cluster.first, cluster.second):
        name = broker.config.broker_name
        async with Admin(broker=broker.address) as admin:
            await admin.create_topic(f"topic-{name}")
            await admin.create_group("readers")
            await admin.create_schedule(
                Definition(name=f"report-{name}", topic=f"topic-{name}", cron="0 6 * * *")
            )
        async with Producer(broker=broker.address) as producer:
            delay = timedelta(hours=1)
            await producer.send(Message(f"topic-{name}", b"b", keys=[f"key-{name}"], delay=delay))


async def every_page(cluster: Cluster, path: str) -> str:
    """Return the text of all pages of a list."""
    texts = []
    while path:
        texts.append(await cluster.page(path))
        following = NEXT.search(texts[-1])
        path = html.unescape(following.group(1)) if following else ""
    return "\n".join(texts)


def test_the_part_of_a_stopped_broker_is_unknown_on_every_page(tmp_path: Path) -> None:
    lists = {
        "/timers": "key-{}",
        "/topics": "topic-{}",
        "/schedules": "report-{}",
        "/messages/key-{}": "key-{}",
    }

    async def main() -> None:
        async with clustered(tmp_path) as cluster:
            await prepare(cluster)
            for path, text in lists.items():
                for name in ("first", "second"):
                    page = await every_page(cluster, path.format(name))
                    assert text.format(name) in page
                    assert UNKNOWN not in page
            group = await cluster.page("/groups/readers")
            assert re.search(r"<dt>Members</dt><dd>0\s*</dd>", group)
            await cluster.stop_second()
            for path, text in lists.items():
                page = await every_page(cluster, path.format("first"))
                assert text.format("first") in page, path
                assert page.count(UNKNOWN) == 1, path
                assert "second:" in page, path
            missing = await cluster.page("/messages/key-second")
            assert UNKNOWN in missing
            assert "second:" in missing
            group = await cluster.page("/groups/readers")
            assert "second:" in group
            assert re.search(r'<dt>Members</dt><dd><span class="unknown">', group)
            overview = await cluster.page("/")
            assert "Not known from: second" in overview
            assert re.search(r'<dt>Pending timers</dt><dd><span class="unknown">', overview)

    asyncio.run(main())
