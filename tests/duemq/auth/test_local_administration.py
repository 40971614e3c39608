"""Administration without accounts: which requests, and from where."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.auth.local_administration import ADMINISTRATIVE, LocalAdministration
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Request
from tests.support.loopback_broker import call, loopback
from tests.support.raw_connection import RawPeer
from tests.support.send_path import send_request

TOPIC = {
    "topic": "New",
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
OK, NO_PERMISSION = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION


class Peer:
    """A peer with an address."""

    def __init__(self, address: str) -> None:
        self.address = (address, 1)


def request_from(address: str, code: int) -> Request:
    request = Request(code, {})
    request.peer = Peer(address)  # type: ignore[assignment]
    return request


@pytest.mark.parametrize(
    ("networks", "address", "allowed"),
    [
        ("loopback", "127.0.0.1", True),
        ("loopback", "::1", True),
        ("loopback", "192.0.2.10", True),  # the machine's own address
        ("loopback", "192.0.2.11", False),
        ("192.0.2.0/28", "192.0.2.11", True),
        ("192.0.2.0/28", "198.51.100.1", False),
        ("any", "198.51.100.1", True),
    ],
)
def test_who_may_administer(networks: str, address: str, allowed: bool) -> None:
    check = LocalAdministration(networks, ["192.0.2.10"])
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_BROKER_CONFIG):
        if allowed:
            check(request_from(address, code))
            continue
        with pytest.raises(RequestError, match="administerFrom") as refused:
            check(request_from(address, code))
        assert refused.value.code == NO_PERMISSION


def test_clients_of_any_address_send_and_consume() -> None:
    check = LocalAdministration("loopback", [])
    for code in (10, 11, 14, 15, 34, 35, 36, 37, 38, 41, 105, 310, 320, 370, 9011, 9012):
        check(request_from("198.51.100.1", code))


def test_requests_of_the_process_itself_pass() -> None:
    LocalAdministration("loopback", [])(Request(RequestCode.UPDATE_AND_CREATE_TOPIC, {}))


def test_what_is_administrative() -> None:
    assert {17, 18, 25, 200, 207, 215, 222, 225, 306, 314} <= ADMINISTRATIVE
    assert not {10, 11, 15, 26, 28, 36, 310, 906, 1008, 9011} & ADMINISTRATIVE


def test_a_word_that_is_no_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="administerFrom"):
        LocalAdministration("office", [])


@pytest.mark.parametrize(
    ("changes", "code"), [({}, NO_PERMISSION), ({"administerFrom": "192.0.2.0/24"}, OK)]
)
def test_a_broker_refuses_administration_of_other_machines(
    tmp_path: Path, changes: dict[str, str], code: int
) -> None:
    async def main() -> None:
        async with loopback(tmp_path, **changes) as broker:
            async with await RawPeer.connect(broker.port) as peer:
                peer.writer.write(b"PROXY TCP4 192.0.2.7 127.0.0.1 5 6\r\n")
                assert (await call(peer, send_request())).code == OK
                assert (await call(peer, Request(17, TOPIC))).code == code
            assert (broker.parts.topics.find("New") is not None) == (code == OK)
            async with await RawPeer.connect(broker.port) as peer:
                assert (await call(peer, Request(17, TOPIC))).code == OK

    asyncio.run(main())
