from __future__ import annotations

import pytest

from delivery.markers import MARKER, Target, target_of

RECALL = {"TAGS": "_RECALL_TAG_", "UNIQ_KEY": "K", MARKER: "K"}


@pytest.mark.parametrize(
    ("properties", "target"),
    [
        ({}, None),
        ({MARKER: "U+K"}, Target("U", "K")),
        ({MARKER: "U+K+L"}, Target("U", "K+L")),
        ({MARKER: "K"}, None),
        ({MARKER: "+K"}, Target("", "K")),
        ({MARKER: "U+"}, None),
        (RECALL, Target("T", "K")),
        (RECALL | {"UNIQ_KEY": "other"}, None),
        (RECALL | {"TAGS": "a"}, None),
        (RECALL | {MARKER: "U+K"}, Target("U", "K")),
    ],
)
def test_target_of(properties: dict[str, str], target: Target | None) -> None:
    assert target_of(properties, "T") == target
