"""Damaged files: a sample of each campaign, and the generated page."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.text import java_hash
from message_store.layout import CQ_UNIT, UNIT_BYTES
from message_store.log.record import decode_record
from message_store.verify import verify_store
from tests.storage_faults.bit_flips import LARGE_LOG, LOST_MAX, outcome, runs
from tests.storage_faults.call_sites import TOP
from tests.storage_faults.damage import KINDS, files_of
from tests.storage_faults.damage_report import DAMAGES
from tests.storage_faults.damaged_store import differences, examine, make_store, name_of
from tests.storage_faults.workload import PROPERTIES, TAGS
from tests.support.encoded_records import encode_record
from tests.support.sparse_files import copy_used
from tests.support.stores import LOOPBACK
from timer_store.verify import TIMERS

COUNT = int(os.environ.get("STORAGE_DAMAGES", "3"))
PAGE = TOP / "docs" / "reference" / "damaged-files.md"
ONE_PAGE = {"accounts", "checkpoint", "delayLevels.json", "duemq.mark", "timercheck"}
NO_PAGES = {"page": ONE_PAGE, "sector": set[str]()}


@pytest.mark.sampled
@pytest.mark.crash
@pytest.mark.parametrize("damage", sorted(LOST_MAX))
def test_damage_costs_no_more_than_what_it_hits(damage: str, seed: int) -> None:
    found = list(runs(range(COUNT), seed, damage, sorted(KINDS)))
    assert len(found) == COUNT
    assert [run for run in found if run["problems"]] == []


def seen(**messages: list[Any]) -> dict[str, Any]:
    """Return the result of examining a store."""
    tagged = {name: ["A"] for name in messages}
    tables = {"messages": messages, "tagged": tagged, "keys": {}, "tables": {}}
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


@pytest.mark.crash
def test_every_flip_in_the_log_of_a_killed_broker_is_noticed(tmp_path: Path) -> None:
    """Including the last bytes, since headers and properties have no checksum of their own."""
    store = asyncio.run(make_store(tmp_path, PROPERTIES | LARGE_LOG, rounds=2, killed=True))
    path = max(files_of(Path(store["root"]), "commit log"))
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    assert verify_store(Path(store["root"]), parts=[TIMERS]).ok
    for pos in range(end - 1, max(end - 3_000, 0), -111):
        path.write_bytes(data[:pos] + bytes([data[pos] ^ 1 << pos % 8]) + data[pos + 1 :])
        kinds = {found.kind for found in verify_store(Path(store["root"])).findings}
        assert "log-block" in kinds, pos


def test_a_message_that_consumers_with_tags_miss_is_lost() -> None:
    found = seen(m1=[MESSAGE]) | {"findings": ["a wrong code"]}
    found["seen"]["tagged"] = {}
    run = outcome(seen(m1=[MESSAGE]), found, "consume queue", "flip", ["m1"])
    assert run["problems"] == ["messages: hidden from consumers with tags"]


@pytest.mark.crash
def test_a_flip_to_the_code_of_another_tag_is_noticed_by_a_running_broker(tmp_path: Path) -> None:
    """Also after units of the other tag were read, whose code is the same and correct."""
    store = asyncio.run(make_store(tmp_path, PROPERTIES | LARGE_LOG, rounds=4, killed=False))
    root = Path(store["root"])
    codes = {java_hash(tag) for tag in TAGS}
    path = max((root / "consumequeue" / "T").glob("*/*"))
    pos, bit = list(to_another_code(path, codes))[-1]
    reference = examine(store, copied(root, tmp_path / "whole" / "store"))
    damaged = copied(root, tmp_path / "damaged" / "store")
    data = bytearray(path.read_bytes())
    data[pos] ^= bit
    assert data[: pos - UNIT_BYTES].count(data[pos - 7 : pos + 1]) > 0
    (damaged / path.relative_to(root)).write_bytes(data)
    found = examine(store, damaged)
    assert sum("does not fit the record" in line for line in found["findings"]) == 1
    assert sum("did not match its record" in line for line in found["warnings"]) == 1
    changed = differences(reference["seen"], found["seen"])
    assert changed == {"messages": [], "tagged": [], "keys": [], "tables": []}
    assert "unit-code" not in {each.kind for each in verify_store(damaged).findings}


def copied(root: Path, target: Path) -> Path:
    return Path(shutil.copytree(root, target, copy_function=copy_used))


def to_another_code(path: Path, codes: set[int]) -> Iterator[tuple[int, int]]:
    """Yield position and bit of each flip in a queue file that makes one tags code another one."""
    for number, unit in enumerate(np.fromfile(path, CQ_UNIT)):
        end = (number + 1) * UNIT_BYTES - 1  # the last byte of the tags code
        bits = [1 << bit for bit in range(8) if int(unit["tags_code"]) ^ 1 << bit in codes]
        if int(unit["tags_code"]) in codes and bits:
            yield end, bits[0]


def test_the_page_has_every_kind_of_file_and_no_broken_promise() -> None:
    text = PAGE.read_text()
    assert text.count("**0 broke a promise**") == 1
    for damage, title in DAMAGES.items():
        section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        kinds = {line.split("|")[1].strip() for line in section.splitlines() if "|" in line}
        assert set(KINDS) - kinds <= NO_PAGES.get(damage, set()), damage


def test_a_message_with_a_changed_body_keeps_its_name() -> None:
    """Otherwise a flip from `m22` to `m32` would count as one lost and one doubled message."""
    fields = {
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "phys_offset": 0,
        "born_ms": 1,
        "store_ms": 1,
        "born_host": LOOPBACK,
        "store_host": LOOPBACK,
        "property_text": b"UNIQ_KEY\x01U22\x02",
    }
    data = encode_record(body=b"m22 xx", **fields)
    damaged = data.replace(b"m22", b"m32")
    for each in (data, damaged):
        assert name_of(decode_record(memoryview(each), 0, check_crc=False)) == "m22"
