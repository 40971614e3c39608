"""The member `offsetTable` of consumerOffset.json."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.registry.offset_table import read_table


def test_numbers_may_be_text() -> None:
    assert read_table({"T@g@h": {"0": "7", 1: -8}}) == {("T", "g@h"): {0: 7, 1: -8}}


@pytest.mark.parametrize(
    "table",
    [[1], {"T": {}}, {"T@G": [1]}, {"T@G": {"x": 1}}, {"T@G": {0: "x"}}, {"T@G": {0: True}}],
)
def test_malformed_tables(table: Any) -> None:
    with pytest.raises(ValueError, match="offsetTable"):
        read_table(table)
