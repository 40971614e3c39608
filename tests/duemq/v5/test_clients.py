"""Table of v5 clients: verification, limits, removal of idle clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.v5.clients import CLIENTS_MAX, CONNECTION_CLIENTS_MAX, IDLE_MS_MAX, V5Client, V5Clients
from duemq.v5.context import CallContext, Signature
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from duemq_common.clock import FakeClock
from duemq_common.request import Peer, Request
from tests.support.fakes import settle

VALID = "valid"


def context(
    client_id: str = "c@1",
    *,
    key: str = "",
    digits: str = VALID,
    host: str = "10.0.0.7",
    port: int = 1,
) -> Any:
    signature = Signature(key, digits, "") if key else None
    return CallContext(client_id, (host, port), "GO", "5.1.2", signature, None)


class Rig:
    """A table, its clock, and the one-way requests of its clients."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.requests: list[tuple[V5Client, Request]] = []
        self.table = V5Clients(
            self.clock, self.verify, lambda client, request: self.requests.append((client, request))
        )

    def verify(self, context: CallContext, peer: Peer) -> None:
        if context.signature is not None and context.signature.digits != VALID:
            raise V5Error(v2.UNAUTHORIZED, "check signature failed.")

    def refusal(self, context: CallContext) -> int:
        with pytest.raises(V5Error) as caught:
            self.table.for_call(context)
        return caught.value.code


def test_an_unverified_peer_does_not_enter_the_table() -> None:
    rig = Rig()
    for n in range(10):
        assert rig.refusal(context(f"c@{n}", key="sale", digits="forged")) == v2.UNAUTHORIZED
    assert len(rig.table) == 0


def test_an_unverified_call_does_not_act_as_the_client_with_its_id() -> None:
    rig = Rig()
    client = rig.table.for_call(context(key="sale"))
    rig.clock.advance(IDLE_MS_MAX + 1)
    assert rig.refusal(context(key="sale", digits="forged")) == v2.UNAUTHORIZED
    rig.table.remove_idle()  # the forged call did not count as activity
    assert client.closed


def test_a_client_is_identified_by_id_account_and_host_not_by_connection() -> None:
    table = Rig().table
    assert table.for_call(context(port=1)) is table.for_call(context(port=2))
    assert table.for_call(context(key="sale")) is not table.for_call(context(key="other"))
    assert len(table) == 3
    elsewhere = table.for_call(context(key="sale", host="10.9.9.9"))
    assert elsewhere.address[0] == "10.9.9.9"  # its permissions are those of this host
    table.remove(context(key="sale", host="10.9.9.9"))
    assert len(table) == 3


def test_clients_per_connection_are_limited() -> None:
    rig = Rig()
    made = [context(f"c@{n}") for n in range(CONNECTION_CLIENTS_MAX)]
    for each in made:
        rig.table.for_call(each)
    assert rig.refusal(context("more")) == v2.TOO_MANY_REQUESTS
    rig.table.for_call(context("more", port=2))
    rig.table.for_call(made[0])  # known
    rig.table.remove(made[0])
    rig.table.for_call(context("other"))
    assert len(rig.table) == CONNECTION_CLIENTS_MAX + 1


def test_clients_of_all_connections_are_limited() -> None:
    rig = Rig()
    for n in range(CLIENTS_MAX):
        rig.table.for_call(context(f"c@{n}", port=n // CONNECTION_CLIENTS_MAX))
    assert rig.refusal(context("more", port=60_000)) == v2.TOO_MANY_REQUESTS
    rig.clock.advance(IDLE_MS_MAX + 1)
    rig.table.remove_idle()
    assert len(rig.table) == 0
    assert rig.table.for_call(context("more")).client_id == "more"


def test_a_client_is_not_idle_while_the_broker_is_stalled() -> None:
    async def main() -> None:
        rig = Rig()
        client = rig.table.for_call(context("a"))
        pause = asyncio.create_task(rig.table.time.pause(asyncio.Event(), 10_000))
        await settle()
        rig.clock.advance(10 * IDLE_MS_MAX)
        await pause
        rig.table.remove_idle()
        assert not client.closed
        rig.clock.advance(IDLE_MS_MAX - 9_999)
        rig.table.remove_idle()
        assert client.closed

    asyncio.run(main())


def test_an_idle_client_is_removed_unless_it_has_a_stream() -> None:
    rig = Rig()
    silent, streaming, calling = (rig.table.for_call(context(each)) for each in "abc")
    closed: list[Peer] = []
    silent.on_close(closed.append)
    streaming.command = lambda command: None
    rig.clock.advance(IDLE_MS_MAX)
    rig.table.for_call(context("c"))
    rig.clock.advance(1)
    rig.table.remove_idle()
    assert closed == [silent]
    assert [each.closed for each in (silent, streaming, calling)] == [True, False, False]


def test_a_removed_client_gets_no_requests() -> None:
    rig = Rig()
    client, request = rig.table.for_call(context()), Request(39, {}, b"")
    client.send_oneway(request)
    rig.table.remove(context())
    rig.table.remove(context())
    client.send_oneway(request)
    assert rig.requests == [(client, request)]
    assert rig.table.for_call(context()) is not client


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.7", bytes([10, 0, 0, 7])),
        ("::ffff:10.0.0.7", bytes([10, 0, 0, 7])),
        ("fe80::1%eth0", bytes([0xFE, 0x80, *bytes(13), 1])),
        ("nowhere", bytes(4)),
    ],
)
def test_the_address_is_the_born_host(address: str, host: bytes) -> None:
    made = CallContext("c", (address, 5), "GO", "", None, None)
    assert V5Client(made, lambda client, request: None).born_host[0] == host


def test_a_callback_of_a_removed_client_is_called_at_once() -> None:
    """A call that outlives its client registers long polls, which nothing else would remove."""
    rig, called = Rig(), list[Peer]()
    client = rig.table.for_call(context())
    client.on_close(called.append)
    assert called == []
    rig.table.remove(context())
    assert called == [client]
    client.on_close(called.append)
    assert called == [client, client]
