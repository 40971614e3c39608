"""What producers, consumers and admins have in common: a client of their own, or a shared one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duemq.client import (
    Admin,
    Client,
    Closed,
    LocalTransactionState,
    Message,
    PendingDecisions,
    Producer,
    PullConsumer,
    PushConsumer,
    Requester,
    TransactionProducer,
    Unreachable,
)
from duemq.client.role import ClientOptions, ClientRole
from duemq_common.codes import RequestCode

Run = Callable[..., Any]
ADDRESS = "127.0.0.1:1"


async def _check(_: object) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


ROLES: list[Callable[[ClientOptions], ClientRole]] = [
    lambda options: Admin(ADDRESS, **options),
    lambda options: PendingDecisions(ADDRESS, **options),
    lambda options: Producer(ADDRESS, **options),
    lambda options: PullConsumer(ADDRESS, group="G", **options),
    lambda options: PushConsumer(ADDRESS, group="G", **options),
    lambda options: Requester(ADDRESS, **options),
    lambda options: TransactionProducer(ADDRESS, check=_check, **options),
]
NAMES = ["admin", "decisions", "producer", "pull", "push", "requester", "transactions"]


@pytest.mark.parametrize("make", ROLES, ids=NAMES)
def test_a_role_closes_its_own_client_only(
    run: Run, make: Callable[[ClientOptions], ClientRole]
) -> None:
    async def main() -> None:
        own = make({})
        for _ in range(2):
            await own.close()
        with pytest.raises(Closed):
            await own.client.connect(ADDRESS)
        async with Client(ADDRESS, timeout_s=9) as client:
            shared = make({"client": client})
            await shared.close()
            assert shared.client is client
            with pytest.raises(ConnectionError):  # not Closed
                await client.connect(ADDRESS)

    run(main())


def test_options_reach_the_client() -> None:
    producer = Producer(ADDRESS, timeout_s=9, group="P")
    assert (producer.client.timeout_s, producer.group) == (9, "P")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="namesrvs"):
        Producer(namesrvs=ADDRESS)  # type: ignore[call-arg]


def test_a_message_after_the_end_is_refused(run: Run) -> None:
    async def main() -> None:
        producer = Producer(broker=ADDRESS)
        await producer.close()
        with pytest.raises(Closed):
            await producer.send(Message("T", b"late"))

    run(main())


@pytest.mark.parametrize("shared", ["_open", "_load_route"])
def test_a_call_that_waits_when_the_client_closes_raises_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """It was cancelled, so a task of the application ended without a word."""

    async def wait(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        monkeypatch.setattr(Client, shared, wait)
        client = Client(ADDRESS)
        call = asyncio.create_task(client.route("T"))
        for _ in range(5):
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Closed):
            await call

    run(main())


@pytest.mark.parametrize("address", ["", "broker", "broker:x", "broker..lan:1", f"{'b' * 64}:1"])
def test_a_broker_with_an_invalid_address_is_unreachable(run: Run, address: str) -> None:
    """One such broker in a route ended the heartbeats to all others."""

    async def main() -> None:
        async with Client(ADDRESS) as client:
            with pytest.raises(Unreachable):
                await client.call(address, RequestCode.HEART_BEAT)

    run(main())


def test_a_cancelled_call_is_cancelled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        monkeypatch.setattr(Client, "_open", wait)
        client = Client(ADDRESS)
        call = asyncio.create_task(client.connect(ADDRESS))
        await asyncio.sleep(0)
        call.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(main())
