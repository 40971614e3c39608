"""List of pending level messages: bounded pages, each message once, invalid fields."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path

import pytest

from duemq.client import Admin, Message, PendingDecisions, Producer, Refused
from message_store.store import MessageStore
from schedule_service import listing
from schedule_service.decisions import PendingLevels
from tests.support.running_broker import TIMEOUT_S, running, small
from tests.support.work_per_turn import WorkPerTurn

VIEW = "schedule_service.list"
HOUR_LEVEL, LONGER_LEVEL = 17, 18


async def listed(admin: Admin, address: str, **fields: object) -> list[list[int]]:
    """Return the levels of the messages, page by page."""
    pages, cursor = list[list[int]](), ""
    while cursor is not None:
        page = await admin.view(address, VIEW, cursor=cursor, **fields)
        assert page["damage"] == []
        pages.append([message["level"] for message in page["messages"]])
        cursor = page["cursor"]
    return pages


def test_a_page_reads_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RECORDS_MAX", 2)

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            Admin(client=producer.client) as admin,
        ):
            for level in (LONGER_LEVEL, HOUR_LEVEL, HOUR_LEVEL, LONGER_LEVEL, HOUR_LEVEL):
                await producer.send(Message("T", b"b", level=level, keys=[f"k{level}"]))
            pages = await listed(admin, broker.address)
            assert max(map(len, pages)) == 2
            assert [*chain(*pages)] == 3 * [HOUR_LEVEL] + 2 * [LONGER_LEVEL]
            assert not any(await listed(admin, broker.address, topic="other"))
            assert await listed(admin, broker.address, key=f"k{LONGER_LEVEL}") == [
                2 * [LONGER_LEVEL]
            ]
            async with PendingDecisions(client=producer.client) as decisions:
                await decisions.cancel(topic="T")
            assert not any(await listed(admin, broker.address))

    asyncio.run(main())


def test_a_page_of_a_key_examines_no_later_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "KEY_PIECE", 3)

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            Admin(client=producer.client) as admin,
            PendingDecisions(client=producer.client) as decisions,
        ):
            for number in range(20):
                level = HOUR_LEVEL if number % 2 else LONGER_LEVEL
                await producer.send(Message(f"T{number % 2}", b"b", level=level, keys=["k"]))
            expected = 10 * [LONGER_LEVEL, HOUR_LEVEL]
            for limit in (1, 2, 3, 4, 7, 20, 30):
                pages = await listed(admin, broker.address, key="k", limit=limit)
                assert [*chain(*pages)] == expected
                assert max(map(len, pages)) <= limit
            work = WorkPerTurn(
                monkeypatch, PendingLevels, "pending_of", lambda _, offsets: offsets.size
            )
            view = admin.view(broker.address, VIEW, key="k", limit=4, cursor="")
            assert len((await work.during(view))["messages"]) == 4
            assert work.total == 6
            await decisions.cancel(topic="T0")
            assert [*chain(*await listed(admin, broker.address, key="k", limit=2))] == (
                10 * [HOUR_LEVEL]
            )

    asyncio.run(main())


def test_other_work_runs_between_the_records_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "RECORDS_PER_STEP", 2)

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            Admin(client=producer.client) as admin,
        ):
            for _ in range(7):
                await producer.send(Message("T", b"b", level=HOUR_LEVEL))
            work = WorkPerTurn(monkeypatch, MessageStore, "read_record")
            [page] = await work.during(listed(admin, broker.address))
            assert len(page) == 7
            assert (work.most, work.total) == (2, 7)

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields", [{"cursor": "1_2"}, {"cursor": "a_b_c"}, {"limit": "many"}, {"from_ms": "-1"}]
)
def test_invalid_fields_are_refused(tmp_path: Path, fields: dict[str, str]) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            with pytest.raises(Refused):
                await admin.view(broker.address, VIEW, **fields)

    asyncio.run(main())
