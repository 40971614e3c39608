"""Addresses of servers as text."""

from __future__ import annotations

import pytest

from duemq_common.host_port import split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" host:1 ", ("host", 1)),
        ("[::1]:9876", ("::1", 9876)),
    ],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:x",
        "host:0",
        "host:99999",
        "host:²",
        "broker..lan:1",
        f"{'b' * 64}:1",
    ],
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)
