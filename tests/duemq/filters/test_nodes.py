"""Depth of nodes."""

from __future__ import annotations

import pytest

from duemq.filters.nodes import DEPTH_MAX, FilterError, Property, as_boolean, depth_over, negation


def test_depth_counts_the_longest_branch() -> None:
    node = as_boolean(Property("a"))
    assert depth_over(Property("b"), node) == 3
    for _ in range(DEPTH_MAX - 2):
        node = negation(node)
    with pytest.raises(FilterError, match="nested"):
        negation(node)
