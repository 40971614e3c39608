"""Header of a send, and the properties that determine its type."""

from __future__ import annotations

import pytest

from duemq.send.send_header import priority_of


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        ("", -1),
        ("0", 0),
        ("3", 3),
        ("+3", 3),
        ("2147483647", 2_147_483_647),
        ("2147483648", -1),
        ("-1", -1),
        ("x", -1),
        ("1.5", -1),
        ("٣", -1),
        ("9" * 40, -1),
    ],
)
def test_the_priority_of_a_message_is_a_java_int(text: str, priority: int) -> None:
    assert priority_of({"_SYS_MSG_PRIORITY_": text} if text else {}) == priority
