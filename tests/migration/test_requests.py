"""Migration requests: former names of keys."""

from __future__ import annotations

import json

import pytest

from duemq_common.errors import RequestError
from duemq_common.request import Request
from migration.requests import (
    FORMER_NAMES,
    MIGRATE,
    command_of,
    with_former_names,
    with_new_names,
)


@pytest.mark.parametrize("key", ["who", "operator"])
def test_the_operator_of_a_command(key: str) -> None:
    body = json.dumps({"action": "pause", "levels": [3], key: "anna"}).encode()
    assert command_of(Request(MIGRATE, {}, body)).operator == "anna"


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("body", [b'{"action":"\xff"}', b"{", b"[" * 100_000, b"\xff"])
def test_a_malformed_command_is_refused_with_the_reason(body: bytes) -> None:
    with pytest.raises(RequestError, match="is not the JSON of a migration request"):
        command_of(Request(MIGRATE, {}, body))


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_a_status_is_read_and_sent_by_both_names(former: str) -> None:
    new = FORMER_NAMES[former]
    assert with_former_names({new: 1}) == with_new_names({former: 1}) == {new: 1, former: 1}
    assert with_new_names({new: 1, former: 2})[new] == 1
    assert with_former_names({"levels": []}) == with_new_names({"levels": []}) == {"levels": []}
