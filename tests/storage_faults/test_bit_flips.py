"""Damaged files: a sample of each campaign, and the page about all of them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.storage_faults.bit_flips import LOST_MAX, outcome, runs
from tests.storage_faults.call_sites import TOP
from tests.storage_faults.damage import KINDS
from tests.storage_faults.damage_report import DAMAGES

COUNT = int(os.environ.get("STORAGE_DAMAGES", "12"))
SEED = int(os.environ.get("STORAGE_FAULTS_SEED", "1"))
PAGE = TOP / "docs" / "reference" / "damaged-files.md"
NO_PAGES = {"page": {"accounts", "timercheck"}, "sector": set[str]()}  # a page is the whole file


@pytest.mark.crash
@pytest.mark.parametrize("damage", sorted(LOST_MAX))
def test_damage_costs_no_more_than_what_it_hits(damage: str) -> None:
    found = list(runs(COUNT, SEED, damage, sorted(KINDS)))
    assert len(found) == COUNT
    assert [run for run in found if run["problems"]] == []


def seen(**messages: list[Any]) -> dict[str, Any]:
    """Return what examining a store found."""
    tables = {"messages": messages, "keys": {}, "tables": {}}
    return {"findings": [], "warnings": [], "seen": tables}


MESSAGE = ["T", 0, "body", False, False]


@pytest.mark.parametrize(
    ("now", "warnings", "kind", "problems"),
    [
        ({"m1": [MESSAGE]}, [], "commit log", []),
        ({"m1": [MESSAGE]}, ["damaged"], "timer log", []),
        ({}, ["damaged"], "commit log", []),
        ({}, [], "commit log", ["not noticed"]),
        ({}, ["damaged"], "timer log", ["messages: {'lost': 1}"]),
        ({"m1": [MESSAGE] * 2}, ["damaged"], "timer wheel", ["messages: {'doubled': 1}"]),
        ({"m1": [[*MESSAGE[:3], True, False]]}, ["x"], "index", ["messages: {'early': 1}"]),
        ({"m1": [[*MESSAGE[:3], False, True]]}, ["x"], "index", ["messages: {'late': 1}"]),
    ],
)
def test_what_breaks_a_promise(
    now: dict[str, Any], warnings: list[str], kind: str, problems: list[str]
) -> None:
    found = seen(**now) | {"warnings": warnings}
    run = outcome(seen(m1=[MESSAGE]), found, kind, "flip", ["m1"])
    assert run["problems"] == problems


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("kind", ["commit log", "consume queue"])
def test_only_the_log_of_a_killed_broker_has_blocks_without_checksums(
    kind: str, killed: bool
) -> None:
    changed = [*MESSAGE[:2], "other", False, False]
    run = outcome(seen(m1=[MESSAGE]), seen(m1=[changed]), kind, "flip", ["m1"], killed=killed)
    assert ("not noticed" not in run["problems"]) == (killed and kind == "commit log")


def test_the_page_has_every_kind_of_file_and_no_broken_promise() -> None:
    text = PAGE.read_text()
    assert text.count("**0 broke a promise**") == 1
    for damage, title in DAMAGES.items():
        section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        kinds = {line.split("|")[1].strip() for line in section.splitlines() if "|" in line}
        assert set(KINDS) - kinds <= NO_PAGES.get(damage, set()), damage
