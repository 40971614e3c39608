"""Every class of fault is reported, and the page of classes is that of a run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_classes import (
    BEYOND,
    BROKERS,
    CURSOR,
    DERIVED,
    FAULTS,
    NOTHING,
    PAGE,
    page_text,
    plant_all,
    reported,
    table_row,
)
from tests.support.store_faults import STORE_FAULTS

pytestmark = [pytest.mark.finding("3P1"), pytest.mark.finding("3P2")]
SAMPLE = 1  # classes of whole files and of the clock in a run; the page is made of all


def test_the_page_has_all_classes_and_a_reason_for_each_without_a_finding() -> None:
    found: dict[tuple[str, str], str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        name, *cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        if name in {*FAULTS, CURSOR, BEYOND, *STORE_FAULTS} and len(cells) == len(BROKERS):
            found |= {(broker, name): cell for broker, cell in zip(BROKERS, cells, strict=True)}
    assert page_text(found) == PAGE.read_text(encoding="utf-8")
    assert {name for (_, name), cell in found.items() if cell == NOTHING} == set(DERIVED)


@pytest.mark.extended
@pytest.mark.spark
def test_every_class_is_reported_as_the_page_says(spark: Any, tmp_path: Path, seed: int) -> None:
    whole = random.Random(seed).sample(sorted(STORE_FAULTS), SAMPLE)
    planted = plant_all(tmp_path, whole)
    found = reported(spark, planted)
    missed = {
        key: text
        for key, text in found.items()
        if text == "no row" or (text == NOTHING and key[1] not in DERIVED)
    }
    assert missed == {}
    for (_, name), text in found.items():
        if name in (CURSOR, BEYOND):
            assert text.startswith("`lost`")
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [
        row for name in {name for _, name in found} if (row := table_row(found, name)) not in lines
    ] == []
