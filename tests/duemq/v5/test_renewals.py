"""Renewal of invisible times: when, for how long, and which handle is valid meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle, parse_handle
from duemq.v5.protocol import definition as v2
from duemq.v5.renewals import (
    AHEAD_MS,
    CLEARED_MS,
    HANDLES_MAX,
    LOOK_MS,
    RENEWED_FOR_MS_MAX,
    RENEWED_MS,
    Renewals,
)
from duemq.v5.status import V5Error
from message_store.clock import FakeClock

CONTEXT = CallContext("c@1", ("10.0.0.7", 1), "GO", "", None, None)


class Rig:
    """Renewals whose changes of invisible times are in `changes`: offset, duration."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.client = V5Client(CONTEXT, lambda client, request: None)
        self.renewals = Renewals(self.clock, self.change)
        self.changes: list[tuple[int, int]] = []
        self.refused: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def handle(self, offset: int, invisible_ms: int = RENEWED_MS) -> Handle:
        text = f"0 {self.clock.now_ms()} {invisible_ms} 0 0 broker-a 0 {offset} 64"
        return parse_handle(text, "broker-a")

    async def change(
        self,
        context: CallContext,
        client: V5Client,
        group: str,
        topic: str,
        handle: Handle,
        invisible_ms: int,
    ) -> Handle:
        assert (context, client, group, topic) == (CONTEXT, self.client, "g", "T")
        self.changes.append((handle.offset, invisible_ms))
        await self.gate.wait()
        if handle.offset in self.refused:
            raise V5Error(v2.INTERNAL_SERVER_ERROR, "gone")
        return self.handle(handle.offset, invisible_ms)

    def note(self, offset: int) -> Handle:
        handle = self.handle(offset)
        self.renewals.note("g", "T", handle, self.client, CONTEXT)
        return handle

    async def pass_ms(self, duration_ms: int) -> None:
        """Let time pass, with a look every few seconds."""
        end_ms = self.clock.now_ms() + duration_ms
        while self.clock.now_ms() < end_ms:
            self.clock.advance(min(LOOK_MS, end_ms - self.clock.now_ms()))
            await self.renewals.renew()


def test_a_caller_that_goes_during_a_renewal_stops_no_other() -> None:
    async def main() -> None:
        rig = Rig()
        handle = rig.note(1)
        rig.gate.clear()
        rig.clock.advance(RENEWED_MS - LOOK_MS)
        renewing = asyncio.create_task(rig.renewals.renew())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taking = asyncio.create_task(rig.renewals.take("g", "T", handle))
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.sleep(0)
        assert taking.cancelled()
        rig.gate.set()
        await renewing

    asyncio.run(main())


def test_a_time_is_renewed_shortly_before_it_is_over() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        await rig.pass_ms(RENEWED_MS - AHEAD_MS - 1)
        assert rig.changes == []
        await rig.pass_ms(1)
        assert rig.changes == [(1, RENEWED_MS)]
        valid = await rig.renewals.take("g", "T", given)
        assert valid.receipt.visible_ms == rig.clock.now_ms() + RENEWED_MS
        await rig.pass_ms(10 * RENEWED_MS)
        assert len(rig.changes) == 1  # it was taken

    asyncio.run(main())


def test_a_time_is_renewed_for_three_hours() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        await rig.pass_ms(RENEWED_FOR_MS_MAX)
        assert rig.renewals.table
        await rig.pass_ms(2 * RENEWED_MS)
        assert not rig.renewals.table
        assert len(rig.changes) == RENEWED_FOR_MS_MAX // (RENEWED_MS - AHEAD_MS)
        assert await rig.renewals.take("g", "T", given) is given

    asyncio.run(main())


def test_messages_of_a_forgotten_client_are_visible_soon() -> None:
    async def main() -> None:
        rig = Rig()
        for offset in range(3):
            rig.note(offset)
        rig.client.close()
        await rig.renewals.renew()
        await rig.renewals.renew()
        assert rig.changes == [(offset, CLEARED_MS) for offset in range(3)]
        assert not rig.renewals.table

    asyncio.run(main())


def test_a_refused_renewal_stops_no_other() -> None:
    async def main() -> None:
        rig = Rig()
        rig.refused = {1}
        for offset in range(3):
            rig.note(offset)
        await rig.pass_ms(2 * (RENEWED_MS - AHEAD_MS))
        assert (
            sorted(rig.changes) == [(0, RENEWED_MS)] * 2 + [(1, RENEWED_MS)] + [(2, RENEWED_MS)] * 2
        )
        assert len(rig.renewals.table) == 2

    asyncio.run(main())


@pytest.mark.parametrize("is_refused", [False, True], ids=["renewed", "refused"])
def test_an_acknowledgement_waits_for_a_renewal_in_flight(is_refused: bool) -> None:
    """With the older handle the message would come again after its new time."""

    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        rig.refused = {1} if is_refused else set()
        rig.gate.clear()
        rig.clock.advance(RENEWED_MS - AHEAD_MS)
        renewing = asyncio.create_task(rig.renewals.renew())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rig.changes
        taking = asyncio.create_task(rig.renewals.take("g", "T", given))
        await asyncio.sleep(0)
        assert not taking.done()
        rig.gate.set()
        await renewing
        valid = await taking
        assert (valid is given) is is_refused
        assert not rig.renewals.table

    asyncio.run(main())


def test_a_handle_of_another_group_is_not_the_renewed_one() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        assert await rig.renewals.take("other", "T", given) is given
        assert await rig.renewals.take("g", "U", given) is given
        assert rig.renewals.table

    asyncio.run(main())


def test_the_table_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HANDLES_MAX == 200_000
    monkeypatch.setattr("duemq.v5.renewals.HANDLES_MAX", 2)
    rig = Rig()
    for offset in range(5):
        rig.note(offset)
    assert len(rig.renewals.table) == 2


def test_renewals_run_while_the_block_is_open() -> None:
    async def main() -> None:
        rig = Rig()
        async with rig.renewals.running():
            rig.note(1)
            while not rig.changes:
                rig.clock.advance(LOOK_MS)
                for _ in range(8):
                    await asyncio.sleep(0)
            assert rig.clock.steady_ms() >= RENEWED_MS - AHEAD_MS

    asyncio.run(main())
