"""Lock of undelivered messages: requests at the same time send each of them once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.client import Admin, Client
from duemq.client.admin import resend_lock
from duemq.client.admin.topics import TopicSettings
from duemq.client.errors import ClientError
from tests.duemq.client.admin.test_resends import copies_of, letter
from tests.support.running_broker import TIMEOUT_S, running, small

Run = Callable[..., Any]
COUNT = 100


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend_lock, "LOOK_S", 0.001)


def test_requests_at_the_same_time_send_each_message_once(run: Run, tmp_path: Path) -> None:
    """Of one client, and of a client that does not know the broker's name."""

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address, broker_name="test", timeout_s=TIMEOUT_S) as client,
            Admin(client=client) as named,
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as other,
        ):
            await named.create_topic("T", TopicSettings(read_queues=1, write_queues=1))
            letters = [letter(number) for number in range(COUNT)]
            parts = await asyncio.gather(*(one.resend(letters) for one in (named, named, other)))
            statuses = Counter(one.status for part in parts for one in part)
            assert statuses == {"sent": COUNT, "already sent": 2 * COUNT}
            assert len(await copies_of(named)) == COUNT

    run(main())


def test_a_request_is_refused_while_another_one_has_the_lock(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend_lock, "WAIT_S", 0.0)

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=1, write_queues=1))
            async with resend_lock.locked(admin.client, "test", "%DLQ%g"):
                [result] = await admin.resend([letter(0)])
                assert (result.status, result.remark) == (
                    "refused",
                    "another request sends messages of %DLQ%g again now: repeat this one later",
                )
                [planned] = await admin.resend([letter(0)], dry_run=True)
                assert planned.status == "would be sent"
                async with resend_lock.locked(admin.client, "test", "%DLQ%other"):
                    pass
            [result] = await admin.resend([letter(0)])
            assert result.status == "sent"

    run(main())


def test_what_the_lock_protects_ends_before_the_broker_drops_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resend_lock, "HELD_S", 0.0)

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            await admin.create_topic("T", TopicSettings(read_queues=1, write_queues=1))
            [result] = await admin.resend([letter(0)])
            assert result.status == "no response"
            assert await copies_of(admin) == {}
            with pytest.raises(TimeoutError):
                async with resend_lock.locked(admin.client, "test", "%DLQ%g"):
                    await asyncio.Event().wait()

    run(main())


def test_a_failure_releases_the_lock(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Admin(broker=broker.address, timeout_s=TIMEOUT_S) as admin,
        ):
            with pytest.raises(ClientError, match="inside"):
                async with resend_lock.locked(admin.client, "test", "%DLQ%g"):
                    raise ClientError("inside")
            async with resend_lock.locked(admin.client, "test", "%DLQ%g"):
                pass

    run(main())
