from __future__ import annotations

import pytest

from delayed_delivery.markers import MARKER, MarkerTarget, target_of

RECALL = {"TAGS": "_RECALL_TAG_", "UNIQ_KEY": "K", MARKER: "K"}


@pytest.mark.parametrize(
    ("properties", "target"),
    [
        ({}, None),
        ({MARKER: "U+K"}, MarkerTarget("U", "K")),
        ({MARKER: "U+K+L"}, MarkerTarget("U", "K+L")),
        ({MARKER: "K"}, None),
        ({MARKER: "+K"}, MarkerTarget("", "K")),
        ({MARKER: "U+"}, None),
        (RECALL, MarkerTarget("T", "K")),
        (RECALL | {"UNIQ_KEY": "other"}, None),
        (RECALL | {"TAGS": "a"}, None),
        (RECALL | {MARKER: "U+K"}, MarkerTarget("U", "K")),
    ],
)
def test_target_of(properties: dict[str, str], target: MarkerTarget | None) -> None:
    assert target_of(properties, "T") == target
