"""Messages and their histories, from a broker in the same process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.client import Admin, Message, Producer, Refused, Unsupported
from duemq.client.admin.messages import RECORD_ONLY
from duemq_common.clock import FakeClock
from duemq_common.request import Response
from tests.support.pop_client import PopClient
from tests.support.running_broker import running, small

Run = Callable[..., Any]


def test_the_history_of_a_name_in_each_state(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with (
            running(small(tmp_path), clock=clock) as (broker, client),
            Admin(broker=broker.address) as admin,
            Producer(client=admin.client) as producer,
        ):
            sent = await producer.send(Message("T", b"x", keys=["k"]))
            later = Message("T", b"y", keys=["k"], delay=timedelta(hours=1))
            await producer.send(later)
            for name in (sent.message_id, sent.offset_message_id):
                [message] = (await admin.message_history(name)).messages
                assert (message.state, message.body) == ("stored", b"x")
                assert (message.broker, message.pops) == (broker.address, [])
            answer = await admin.message_history("k", topic="T")
            assert [each.state for each in answer.messages] == ["stored", "pending"]
            assert answer.messages[1].due_ms == clock.now_ms() + 3_600_000
            assert (await admin.message_history("k", topic="U")).messages == []
            await PopClient(client, clock, "G").pop("T", invisibleTime=10_000)
            [message] = (await admin.message_history(sent.message_id)).messages
            [pop] = message.pops
            assert (pop.group, pop.attempt) == ("G", 1)
            assert pop.invisible_until_ms == clock.now_ms() + 10_000

    run(main())


def test_a_malformed_name_is_refused(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _), Admin(broker=broker.address) as admin:
            with pytest.raises(Refused, match="at least 1"):
                await admin.message_history("")

    run(main())


class AdminOfApache(Admin):
    """Admin of a broker that does not know history requests."""

    async def ask_broker(self, address: str, code: int, *_: object, **__: object) -> Response:
        """Raise the error for an unknown request."""
        raise Unsupported(f"broker {address} does not have request {code}")


def test_a_broker_without_histories_returns_its_record(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            AdminOfApache(broker=broker.address) as admin,
            Producer(client=admin.client) as producer,
        ):
            sent = await producer.send(Message("T", b"x", keys=["k"]))
            for name, topic in (
                (sent.offset_message_id, ""),
                (sent.message_id, "T"),
                ("k", "T"),
            ):
                [message] = (await admin.message_history(name, topic=topic)).messages
                assert (message.unique_key, message.body) == (sent.message_id, b"x")
                assert (message.state, message.reason) == ("stored", RECORD_ONLY)
            for name, topic in ((sent.message_id, ""), ("other", "T"), ("k", "U")):
                assert (await admin.message_history(name, topic=topic)).messages == []

    run(main())
