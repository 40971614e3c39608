"""Addresses of plain_acl.yml."""

from __future__ import annotations

import pytest

from duemq.auth.plain_addresses import matcher


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("", (), ("10.0.0.1", "")),
        ("*", ("10.0.0.1", "::1", ""), ()),
        ("*.*.*.*", ("10.0.0.1",), ()),
        ("10.0.0.1", ("10.0.0.1",), ("10.0.0.10", "x")),
        ("10.0.0.1,10.0.0.3", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2",)),
        ("10.0.0.{1,3}", ("10.0.0.1", "10.0.0.3"), ("10.0.0.2",)),
        ("10.0.0.*", ("10.0.0.0", "10.0.0.255"), ("10.0.1.0", "::1")),
        ("10.0.1-3.*", ("10.0.1.0", "10.0.3.9"), ("10.0.4.0", "10.0.0.1")),
        ("10.0.0.5-9", ("10.0.0.5", "10.0.0.9"), ("10.0.0.4", "10.0.0.10")),
        ("2001:db8::7", ("2001:db8:0::7",), ("2001:db8::8", "10.0.0.1")),
        ("2001:db8::{7,8}", ("2001:db8::8",), ("2001:db8::9",)),
        ("2001:db8::10-ff", ("2001:db8::10", "2001:db8::ff"), ("2001:db8::f", "2001:db8::1:10")),
        ("2001:db8:0:0:0:0:*:*", ("2001:db8::9:9",), ("2001:db8:1::9", "10.0.0.1")),
    ],
)
def test_addresses(text: str, inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    matches = matcher(text)
    assert all(map(matches, inside))
    assert not any(map(matches, outside))


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0",
        "10.0.0.256",
        "10.0.*",
        "10.0.0.9-5",
        "10.0.0.-5",
        "a.b.c.d",
        "10.0{1,2}",
        "10.0.0.{1,x}",
        "10.0.0.300-400",
        "1:2:3:*",
        "2001:db8::zz-ff",
        "host",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        matcher(text)
