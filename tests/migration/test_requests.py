"""Migration requests: malformed bodies."""

from __future__ import annotations

import pytest

from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from duemq_common.request import Request
from duemq_migration.requests import command_of


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("body", [b'{"action":"\xff"}', b"{", b"[" * 100_000, b"\xff"])
def test_a_malformed_command_is_refused_with_the_reason(body: bytes) -> None:
    with pytest.raises(RequestError, match="is not the JSON of a migration request"):
        command_of(Request(RequestCode.MIGRATE, {}, body))
