"""Receipt handles after their invisible time."""

from __future__ import annotations

import pytest

from duemq.v5.handles import check_not_expired, parse_handle
from duemq.v5.status import V5Error


def test_a_handle_expires_when_its_pop_is_decided() -> None:
    """Acknowledgements that arrived during a stall were refused, and their messages sent again."""
    handle = parse_handle("0 1000 500 0 0 broker-a 0 7 64", "broker-a")
    check_not_expired(handle, 1_499, lambda: 1_499)
    check_not_expired(handle, 60_000, lambda: 1_499)
    with pytest.raises(V5Error, match="expired"):
        check_not_expired(handle, 60_000, lambda: 1_500)
