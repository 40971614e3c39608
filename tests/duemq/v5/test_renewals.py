"""Renewal of invisible times: schedule, maximum duration, newest handle."""

from __future__ import annotations

import asyncio

import pytest

from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle, parse_handle
from duemq.v5.protocol import definition as v2
from duemq.v5.renewals import (
    CHECK_INTERVAL_MS,
    CLOSED_CLIENT_INVISIBLE_MS,
    HANDLES_MAX,
    RENEW_AHEAD_MS,
    RENEWAL_MS_MAX,
    RENEWED_INVISIBLE_MS,
    Renewals,
)
from duemq.v5.status import HandleEnded, V5Error
from duemq_common.clock import FakeClock

CONTEXT = CallContext("c@1", ("10.0.0.7", 1), "GO", "", None, None)


class Rig:
    """Renewals on a fake clock; `changes` has the offset and invisible time of each renewal."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.client = V5Client(CONTEXT, lambda client, request: None)
        self.renewals = Renewals(self.clock, self.change)
        self.changes: list[tuple[int, int]] = []
        self.refused: set[int] = set()
        self.busy: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def handle(self, offset: int, invisible_ms: int = RENEWED_INVISIBLE_MS) -> Handle:
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
            raise HandleEnded(v2.INTERNAL_SERVER_ERROR, "gone")
        if handle.offset in self.busy:
            raise V5Error(v2.TOO_MANY_REQUESTS, "busy")
        return self.handle(handle.offset, invisible_ms)

    def note(self, offset: int) -> Handle:
        handle = self.handle(offset)
        self.renewals.add("g", "T", handle, self.client, CONTEXT)
        return handle

    async def pass_ms(self, duration_ms: int) -> None:
        """Advance the clock; renew at each check interval."""
        end_ms = self.clock.now_ms() + duration_ms
        while self.clock.now_ms() < end_ms:
            self.clock.advance(min(CHECK_INTERVAL_MS, end_ms - self.clock.now_ms()))
            await self.renewals.renew()


def test_a_caller_cancelled_during_a_renewal_does_not_stop_others() -> None:
    async def main() -> None:
        rig = Rig()
        handle = rig.note(1)
        rig.gate.clear()
        rig.clock.advance(RENEWED_INVISIBLE_MS - CHECK_INTERVAL_MS)
        renewing = asyncio.create_task(rig.renewals.renew())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        taking = asyncio.create_task(rig.renewals.remove("g", "T", handle))
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.sleep(0)
        assert taking.cancelled()
        rig.gate.set()
        await renewing

    asyncio.run(main())


def test_an_invisible_time_is_renewed_shortly_before_it_expires() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        await rig.pass_ms(RENEWED_INVISIBLE_MS - RENEW_AHEAD_MS - 1)
        assert rig.changes == []
        await rig.pass_ms(1)
        assert rig.changes == [(1, RENEWED_INVISIBLE_MS)]
        valid = await rig.renewals.remove("g", "T", given)
        assert valid.receipt.visible_ms == rig.clock.now_ms() + RENEWED_INVISIBLE_MS
        await rig.pass_ms(10 * RENEWED_INVISIBLE_MS)
        assert len(rig.changes) == 1  # it was removed

    asyncio.run(main())


def test_an_invisible_time_is_renewed_for_three_hours() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        await rig.pass_ms(RENEWAL_MS_MAX)
        assert rig.renewals.table
        await rig.pass_ms(2 * RENEWED_INVISIBLE_MS)
        assert not rig.renewals.table
        assert len(rig.changes) == RENEWAL_MS_MAX // (RENEWED_INVISIBLE_MS - RENEW_AHEAD_MS)
        assert await rig.renewals.remove("g", "T", given) is given

    asyncio.run(main())


def test_messages_of_a_removed_client_become_visible_soon() -> None:
    async def main() -> None:
        rig = Rig()
        for offset in range(3):
            rig.note(offset)
        rig.client.close()
        await rig.renewals.renew()
        await rig.renewals.renew()
        assert rig.changes == [(offset, CLOSED_CLIENT_INVISIBLE_MS) for offset in range(3)]
        assert not rig.renewals.table

    asyncio.run(main())


def test_a_refused_renewal_does_not_stop_others() -> None:
    async def main() -> None:
        rig = Rig()
        rig.refused = {1}
        for offset in range(3):
            rig.note(offset)
        await rig.pass_ms(2 * (RENEWED_INVISIBLE_MS - RENEW_AHEAD_MS))
        assert (
            sorted(rig.changes)
            == [(0, RENEWED_INVISIBLE_MS)] * 2
            + [(1, RENEWED_INVISIBLE_MS)]
            + [(2, RENEWED_INVISIBLE_MS)] * 2
        )
        assert len(rig.renewals.table) == 2

    asyncio.run(main())


def test_a_renewal_is_repeated_until_the_message_is_visible() -> None:
    """Messages were visible while they were processed, after one refusal of a busy broker."""

    async def main() -> None:
        rig = Rig()
        rig.busy = {1, 2}
        given = rig.note(1)
        rig.note(2)
        await rig.pass_ms(RENEWED_INVISIBLE_MS - RENEW_AHEAD_MS)
        assert rig.changes == [(1, RENEWED_INVISIBLE_MS), (2, RENEWED_INVISIBLE_MS)]
        rig.busy = {2}
        await rig.pass_ms(CHECK_INTERVAL_MS)
        newest = rig.renewals.newest("g", "T", given)
        assert newest.receipt.visible_ms == rig.clock.now_ms() + RENEWED_INVISIBLE_MS
        assert len(rig.renewals.table) == 2
        await rig.pass_ms(CHECK_INTERVAL_MS)
        assert [key[2] for key in rig.renewals.table] == [given.text]

    asyncio.run(main())


def test_the_last_change_of_a_removed_client_is_repeated() -> None:
    async def main() -> None:
        rig = Rig()
        rig.busy = {1}
        rig.note(1)
        rig.client.close()
        await rig.renewals.renew()
        rig.busy = set()
        await rig.renewals.renew()
        assert rig.changes == [(1, CLOSED_CLIENT_INVISIBLE_MS)] * 2
        assert not rig.renewals.table

    asyncio.run(main())


@pytest.mark.parametrize("is_refused", [False, True], ids=["renewed", "refused"])
def test_an_acknowledgement_waits_for_a_renewal_in_flight(is_refused: bool) -> None:
    """An acknowledgement with the older handle would not prevent redelivery."""

    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        rig.refused = {1} if is_refused else set()
        rig.gate.clear()
        rig.clock.advance(RENEWED_INVISIBLE_MS - RENEW_AHEAD_MS)
        renewing = asyncio.create_task(rig.renewals.renew())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rig.changes
        taking = asyncio.create_task(rig.renewals.remove("g", "T", given))
        await asyncio.sleep(0)
        assert not taking.done()
        rig.gate.set()
        await renewing
        valid = await taking
        assert (valid is given) is is_refused
        assert not rig.renewals.table

    asyncio.run(main())


def test_renewals_are_specific_to_group_and_topic() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        assert await rig.renewals.remove("other", "T", given) is given
        assert await rig.renewals.remove("g", "U", given) is given
        assert rig.renewals.table

    asyncio.run(main())


def test_the_table_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HANDLES_MAX == 200_000
    monkeypatch.setattr("duemq.v5.renewals.HANDLES_MAX", 2)
    rig = Rig()
    for offset in range(5):
        rig.note(offset)
    assert len(rig.renewals.table) == 2


def test_renewals_run_while_the_block_is_active() -> None:
    async def main() -> None:
        rig = Rig()
        async with rig.renewals.running():
            rig.note(1)
            while not rig.changes:
                rig.clock.advance(CHECK_INTERVAL_MS)
                for _ in range(8):
                    await asyncio.sleep(0)
            assert rig.clock.steady_ms() >= RENEWED_INVISIBLE_MS - RENEW_AHEAD_MS

    asyncio.run(main())


def test_a_handle_is_in_flight_only_during_its_renewal() -> None:
    async def main() -> None:
        rig = Rig()
        given, other = rig.note(1), rig.note(2)
        assert not rig.renewals.is_in_flight("g", "T", [given.text, other.text, "unknown"])
        rig.gate.clear()
        rig.clock.advance(RENEWED_INVISIBLE_MS - CHECK_INTERVAL_MS)
        renewing = asyncio.create_task(rig.renewals.renew())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert rig.renewals.is_in_flight("g", "T", ["unknown", given.text])
        rig.gate.set()
        await renewing
        assert not rig.renewals.is_in_flight("g", "T", [given.text])
        newest = rig.renewals.newest("g", "T", given)
        assert newest.receipt.visible_ms > given.receipt.visible_ms
        rig.renewals.remove_at_rest("g", "T", given)
        assert rig.renewals.newest("g", "T", given) is given

    asyncio.run(main())


def test_a_message_that_was_not_sent_is_visible_within_a_second_of_the_next_check() -> None:
    async def main() -> None:
        rig = Rig()
        rig.note(1)
        rig.renewals.release("g", "T", rig.note(2), rig.client, CONTEXT)  # renewed until now
        rig.renewals.release("g", "T", rig.handle(3), rig.client, CONTEXT)
        await rig.pass_ms(CHECK_INTERVAL_MS)
        shortened = [(2, CLOSED_CLIENT_INVISIBLE_MS), (3, CLOSED_CLIENT_INVISIBLE_MS)]
        assert rig.changes == shortened
        assert [key[2].split()[7] for key in rig.renewals.table] == ["1"]

    asyncio.run(main())


def test_a_message_acknowledged_before_its_renewal_begins_is_not_changed() -> None:
    async def main() -> None:
        rig = Rig()
        given = rig.note(1)
        rig.clock.advance(RENEWED_INVISIBLE_MS)
        renewing = asyncio.create_task(rig.renewals.renew())
        await asyncio.sleep(0)  # the renewals have tasks, which have not run yet
        rig.renewals.remove_at_rest("g", "T", given)
        await renewing
        assert rig.changes == []

    asyncio.run(main())
