"""Networks from which a name server accepts requests."""

from __future__ import annotations

import pytest

from duemq.net.allowed_networks import Sources, parse_sources
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Request
from tests.support.fakes import FakePeer

OWN = ("192.0.2.7",)


@pytest.mark.finding("E12")
@pytest.mark.parametrize(
    ("text", "address", "allowed"),
    [
        ("any", "203.0.113.9", True),
        ("any", "::1", True),
        ("loopback", "127.0.0.1", True),
        ("loopback", "127.9.9.9", True),
        ("loopback", "::1", True),
        ("loopback", "::ffff:127.0.0.1", True),
        ("loopback", "192.0.2.7", True),
        ("loopback", "192.0.2.8", False),
        ("loopback", "::ffff:192.0.2.8", False),
        ("", "127.0.0.1", True),
        ("", "10.0.0.1", False),
        ("10.0.0.0/8; 203.0.113.9", "10.255.0.1", True),
        ("10.0.0.0/8; 203.0.113.9", "203.0.113.9", True),
        ("10.0.0.0/8; 203.0.113.9", "203.0.113.10", False),
        ("10.0.0.5/8", "10.1.1.1", True),
        ("fd00::/8", "fd12::1", True),
        ("loopback", "fe80::1%eth0", False),
        ("loopback", "no address", False),
        ("loopback", "", False),
    ],
)
def test_addresses(text: str, address: str, allowed: bool) -> None:
    assert parse_sources("registerFrom", text, OWN).allows(address) == allowed


@pytest.mark.parametrize("text", ["anyone", "10.0.0.0/33", "host.example", "1;" * 300])
def test_invalid_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="registerFrom"):
        parse_sources("registerFrom", text)


def test_a_refusal_names_the_address_and_the_key() -> None:
    peer = FakePeer()
    peer.address = ("203.0.113.9", 1)
    with pytest.raises(RequestError, match=r"203\.0\.113\.9.*administerFrom") as refused:
        Sources("administerFrom").check(Request(205, {}, b"", peer=peer), "x")
    assert refused.value.code == 16
    Sources("administerFrom").check(Request(205, {}, b""), "x")
