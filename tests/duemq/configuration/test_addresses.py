"""Addresses that no server can have."""

from __future__ import annotations

import pytest

from duemq.configuration.addresses import parse_addresses
from duemq_common.errors import ConfigError

MALFORMED = ["a", "a:", ":1", "a:0", "a:65536", "a:1x", "a:²", "broker..lan:1", "a:1;b..c:1"]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_addresses("namesrvAddr", text)


def test_addresses_of_version_6_and_of_names_in_other_languages_are_accepted() -> None:
    addresses = ["[::1]:9876", "bröker.lan:9876"]
    assert parse_addresses("namesrvAddr", "[::1]:9876;bröker.lan:9876") == addresses
