"""Limits that depend on each other."""

from __future__ import annotations

import pytest

from duemq.net.codec import FRAME_BYTES_MAX
from duemq.net.limits import body_bytes_max


@pytest.mark.parametrize(
    ("configured", "taken"),
    [
        (1, 1),
        (4 << 20, 4 << 20),
        (FRAME_BYTES_MAX, FRAME_BYTES_MAX - (128 << 10)),
        (256 << 20, FRAME_BYTES_MAX - (128 << 10)),
    ],
)
def test_an_accepted_message_fits_into_a_response(configured: int, taken: int) -> None:
    assert body_bytes_max(configured) == taken
