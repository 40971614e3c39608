"""Migration requests: malformed bodies, and the bounds of each field."""

from __future__ import annotations

import json

import pytest

from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from duemq_common.request import Request
from duemq_migration.requests import DELAY_MS_MAX, command_of

TEXT = "x" * 200
RULES = {f"T{number}": 0 for number in range(1_000)}


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("body", [b'{"action":"\xff"}', b"{", b"[" * 100_000, b"\xff"])
def test_a_malformed_command_is_refused_with_the_reason(body: bytes) -> None:
    with pytest.raises(RequestError, match="is not the JSON of a migration request"):
        command_of(Request(RequestCode.MIGRATE, {}, body))


@pytest.mark.parametrize(
    ("fields", "over", "reason"),
    [
        ({"operator": TEXT}, {"operator": TEXT + "x"}, "a text is longer than 200"),
        ({"cause": TEXT}, {"cause": TEXT + "x"}, "a text is longer than 200"),
        ({"plan_id": TEXT}, {"plan_id": TEXT + "x"}, "a text is longer than 200"),
        ({"levels": [1] * 1_000}, {"levels": [1] * 1_001}, "more than 1000 levels"),
        ({"rules": RULES}, {"rules": RULES | {"T": 0}}, "or 1000 rules"),
        ({"rules": {"T": 0}}, {"rules": {"T": -1}}, "the delay -1 ms must be 0 to"),
        ({"rules": {"T": DELAY_MS_MAX}}, {"rules": {"T": DELAY_MS_MAX + 1}}, "must be 0 to"),
        ({"rules": {"T": 0}}, {"rules": {"": 0}}, "rule ''"),
    ],
)
def test_each_field_has_bounds(
    fields: dict[str, object], over: dict[str, object], reason: str
) -> None:
    def command(more: dict[str, object]) -> Request:
        return Request(RequestCode.MIGRATE, {}, json.dumps({"action": "start", **more}).encode())

    command_of(command(fields))
    with pytest.raises(RequestError, match=reason):
        command_of(command(over))
