"""Every class of fault is reported, and the page of classes is that of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reconciliation.audit.verdicts import CLEAN
from tests.support.fault_classes import BEYOND, CURSOR, PAGE, page_text, plant_all, reported

pytestmark = [pytest.mark.spark, pytest.mark.finding("3P1"), pytest.mark.finding("3P2")]


def test_every_class_is_reported_as_the_page_says(spark: Any, tmp_path: Path) -> None:
    planted = plant_all(tmp_path)
    found = reported(spark, planted)
    missed = {
        key: text for key, text in found.items()
        if text == "no row" or text.split("`")[1] in CLEAN
    }  # fmt: skip
    assert missed == {}
    for (_, name), text in found.items():
        if name in (CURSOR, BEYOND):
            assert text.startswith("`lost`")
    assert PAGE.read_text(encoding="utf-8") == page_text(found)
