"""The console with a broker that is away: its part is unknown, the other parts are shown."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import timedelta
from pathlib import Path

import pytest

from duemq.client import Admin, Message, Producer
from duemq.client.admin.cluster import BrokerMember
from duemq.console.application import ENTRIES
from duemq.console.logins import LoginRole
from duemq.http import broker_states
from duemq.http.broker_states import NOT_REGISTERED, OTHER_FORM
from recurring_schedules.definition import Definition
from tests.duemq.console.cluster import Cluster, clustered
from tests.duemq.console.rig import served
from tests.support.running_broker import TIMEOUT_S

LISTS = [entry.path for entry in ENTRIES if entry.title and entry.role == LoginRole.VIEWER] + [
    "/dead-letters/readers"
]
DETAILS = ("/schedules/report-second", "/audits/audit-1?broker=second")
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
        async with Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer:
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
            for path in LISTS:
                assert "second:" not in await every_page(cluster, path)
            await cluster.stop_second()
            for path, text in lists.items():
                page = await every_page(cluster, path.format("first"))
                assert text.format("first") in page, path
                assert page.count(UNKNOWN) == 1, path
            for path in LISTS:
                assert NOT_REGISTERED in await every_page(cluster, path), path
            for path in DETAILS:
                response = await cluster.client.get(f"/console{path}")
                assert (response.status_code, NOT_REGISTERED in response.text) == (503, True), path
            one = (await cluster.client.get("/console/quarantine/second%2F0")).text
            assert "there is no master of broker second" in one
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


def test_a_list_without_a_part_is_not_empty(tmp_path: Path) -> None:
    """The broker that is away is before the other one in each list."""

    async def main() -> None:
        async with clustered(tmp_path, second_name="absent") as cluster:
            for path in LISTS:
                assert UNKNOWN not in await cluster.page(path), path
            await cluster.stop_second()
            for path in LISTS:
                page = await cluster.page(path)
                assert "absent" in page, path
                assert "There are none." not in page, path

    asyncio.run(main())


def test_a_broker_of_another_version_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timer_store.views.summary", lambda timers: {"now_ms": 1, "pending": 3})
    monkeypatch.setattr(
        "schedule_service.plugin.levels_view", lambda *_: {"pending": 0, "levels": [{"level": 1}]}
    )
    with served(tmp_path) as running, running.client() as client:
        overview, levels = client.get("/"), client.get("/levels")
    assert (overview.status_code, levels.status_code) == (200, 200)
    assert OTHER_FORM in overview.text
    assert re.search(r'<dt>Pending timers</dt><dd><span class="unknown">', overview.text)
    assert OTHER_FORM in levels.text


def test_a_broker_that_hangs_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(broker_states, "TIMEOUT_S", 0.01)
        ended = asyncio.Event()

        async def ask(member: BrokerMember) -> str:
            if member.name == "silent":
                await ended.wait()
            return "value"

        members = [BrokerMember("c", name, 0, "127.0.0.1:1") for name in ("silent", "other")]
        silent, other = await broker_states.of_members(members, ask)
        assert (silent.value, silent.failure) == (None, "no response within 0 s")
        assert other.value == "value"

    asyncio.run(main())


def test_a_broker_is_forgotten_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with clustered(tmp_path) as cluster:
            await cluster.page("/")
            await cluster.stop_second()
            assert "second" in await cluster.page("/replicas")
            monkeypatch.setattr("duemq.http.sessions.FORGOTTEN_S", 1e-9)
            assert "second" not in await cluster.page("/replicas")

    asyncio.run(main())
