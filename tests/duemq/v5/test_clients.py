"""The table of v5 clients: who enters it, how many, who is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.plugin import Peer, Request
from duemq.v5.clients import CLIENTS_MAX, CONNECTION_CLIENTS_MAX, EXPIRES_MS, V5Client, V5Clients
from duemq.v5.context import CallContext, Signature
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from message_store.clock import FakeClock

VALID = "valid"


def context(client_id: str = "c@1", *, key: str = "", digits: str = VALID, port: int = 1) -> Any:
    signature = Signature(key, digits, "") if key else None
    return CallContext(client_id, ("10.0.0.7", port), "GO", "5.1.2", signature, None)


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
            self.table.of(context)
        return caught.value.code


def test_an_unverified_peer_does_not_enter_the_table() -> None:
    rig = Rig()
    for n in range(10):
        assert rig.refusal(context(f"c@{n}", key="sale", digits="forged")) == v2.UNAUTHORIZED
    assert len(rig.table) == 0


def test_an_unverified_peer_is_not_the_client_whose_id_it_names() -> None:
    rig = Rig()
    client = rig.table.of(context(key="sale"))
    rig.clock.advance(EXPIRES_MS + 1)
    assert rig.refusal(context(key="sale", digits="forged")) == v2.UNAUTHORIZED
    rig.table.expire()  # the forged call has not prolonged it
    assert client.closed


def test_a_client_is_the_same_on_each_connection_and_of_one_account() -> None:
    table = Rig().table
    assert table.of(context(port=1)) is table.of(context(port=2))
    assert table.of(context(key="sale")) is not table.of(context(key="other"))
    assert len(table) == 3


def test_a_connection_has_a_limit_of_clients() -> None:
    rig = Rig()
    made = [context(f"c@{n}") for n in range(CONNECTION_CLIENTS_MAX)]
    for each in made:
        rig.table.of(each)
    assert rig.refusal(context("more")) == v2.TOO_MANY_REQUESTS
    rig.table.of(context("more", port=2))
    rig.table.of(made[0])  # known
    rig.table.remove(made[0])
    rig.table.of(context("other"))
    assert len(rig.table) == CONNECTION_CLIENTS_MAX + 1


def test_all_connections_have_a_limit_of_clients() -> None:
    rig = Rig()
    for n in range(CLIENTS_MAX):
        rig.table.of(context(f"c@{n}", port=n // CONNECTION_CLIENTS_MAX))
    assert rig.refusal(context("more", port=60_000)) == v2.TOO_MANY_REQUESTS
    rig.clock.advance(EXPIRES_MS + 1)
    rig.table.expire()
    assert len(rig.table) == 0
    assert rig.table.of(context("more")).client_id == "more"


def test_a_silent_client_is_forgotten_unless_it_has_a_stream() -> None:
    rig = Rig()
    silent, streaming, calling = (rig.table.of(context(each)) for each in "abc")
    closed: list[Peer] = []
    silent.on_close(closed.append)
    streaming.command = lambda command: None
    rig.clock.advance(EXPIRES_MS)
    rig.table.of(context("c"))
    rig.clock.advance(1)
    rig.table.expire()
    assert closed == [silent]
    assert [each.closed for each in (silent, streaming, calling)] == [True, False, False]


def test_a_forgotten_client_gets_no_requests() -> None:
    rig = Rig()
    client, request = rig.table.of(context()), Request(39, {}, b"")
    client.send_oneway(request)
    rig.table.remove(context())
    rig.table.remove(context())
    client.send_oneway(request)
    assert rig.requests == [(client, request)]
    assert rig.table.of(context()) is not client


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
