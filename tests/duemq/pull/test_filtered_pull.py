"""Pulls of subscriptions with SQL92 filters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq_common.errors import RequestError
from tests.duemq.pull.test_pull import SUBSCRIPTION, SUSPEND, Rig, store
from tests.support.fakes import put, settle

__all__ = ["store"]
COLOUR = {"subscription": "colour = 'red'", "expressionType": "SQL92"}
RED, BLUE = b"colour\x01red\x02", b"colour\x01blue\x02"


def test_a_pull_returns_the_messages_that_match(run: Any, store: Any) -> None:
    rig = Rig(store=store)
    put(rig.store, "T", b"one", properties=RED)
    put(rig.store, "T", b"two", properties=BLUE)
    put(rig.store, "T", b"three")
    put(rig.store, "T", b"four", properties=RED)
    response = run(rig.pull(**COLOUR))
    found = [word for word in (b"one", b"two", b"three", b"four") if word in response.body]
    assert (response.code, found) == (0, [b"one", b"four"])
    assert response.fields["nextBeginOffset"] == "4"


def test_the_next_pull_begins_at_the_next_match(run: Any, store: Any) -> None:
    rig = Rig(store=store)
    for body in (b"one", b"two"):
        put(rig.store, "T", body, properties=BLUE)
        put(rig.store, "T", body, properties=RED)
    response = run(rig.pull(maxMsgNums=1, **COLOUR))
    assert response.fields["nextBeginOffset"] == "3"
    assert run(rig.pull(maxMsgNums=1, queueOffset=3, **COLOUR)).body.count(b"two") == 1


def test_a_pull_without_a_match_advances(run: Any, store: Any) -> None:
    rig = Rig(store=store)
    put(rig.store, "T", b"one", b"two", properties=BLUE)
    response = run(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND, **COLOUR))
    assert (response.code, response.remark) == (20, "NO_MATCHED_MESSAGE")
    assert response.fields["nextBeginOffset"] == "2"


def test_a_star_is_not_a_valid_sql92_filter(run: Any) -> None:
    with pytest.raises(RequestError) as caught:
        run(Rig().pull(subscription="*", expressionType="SQL92"))
    assert caught.value.code == 23
    assert 'Encountered: "*" (42)' in str(caught.value)


def test_a_pull_without_a_filter_uses_that_of_the_heartbeat(run: Any, store: Any) -> None:
    rig = Rig(store=store)
    rig.join(expression="colour = 'red'", kind="SQL92", version=3)
    put(rig.store, "T", b"one", properties=BLUE)
    put(rig.store, "T", b"two", properties=RED)
    response = run(rig.pull(sysFlag=0, subVersion=3, subscription=""))
    assert (b"one" in response.body, b"two" in response.body) == (False, True)


@pytest.mark.parametrize("expression", ["colour =", ""])
def test_an_invalid_filter_of_the_heartbeat_is_refused(run: Any, expression: str) -> None:
    rig = Rig()
    rig.join(expression=expression, kind="SQL92", version=3)
    with pytest.raises(RequestError) as caught:
        run(rig.pull(sysFlag=0, subVersion=3))
    assert caught.value.code == 27


def test_a_long_poll_is_resumed_by_a_message_that_matches(run: Any, store: Any) -> None:
    async def scene() -> None:
        rig = Rig(store=store)
        pull = asyncio.create_task(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND, **COLOUR))
        await settle()
        for _ in range(3):
            put(rig.store, "T", b"other", properties=BLUE)
            await settle()
            assert not pull.done()
            assert len(rig.long_polls) == 1
        put(rig.store, "T", b"wanted", properties=RED)
        response = await pull
        assert (response.code, response.body.count(b"other")) == (0, 0)  # type: ignore[misc]
        assert b"wanted" in response.body
        assert response.fields["nextBeginOffset"] == "4"

    run(scene())


def test_messages_without_a_match_do_not_extend_a_long_poll(run: Any, store: Any) -> None:
    async def scene() -> None:
        rig = Rig(store=store)
        async with rig.long_polls.running():
            pull = asyncio.create_task(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND, **COLOUR))
            await settle()
            rig.clock.advance(14_000)
            put(rig.store, "T", b"other", properties=BLUE)
            await settle()
            assert not pull.done()
            rig.clock.advance(1_500)
            response = await pull
        assert (response.code, response.fields["nextBeginOffset"]) == (19, "1")

    run(scene())
