"""Arbitrary bytes in any file of a store: `verify_store` returns a report in all cases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store.verify import verify_store
from tests.support.extended import examples
from tests.support.golden_stores import STORES, GoldenStore, golden_store

changes = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.sampled_from(["flip", "zero", "copy", "cut", "junk"]),
        st.integers(0, 1 << 20),
        st.integers(0, 1 << 20),
        st.binary(min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=8,
)


def change(path: Path, how: str, at: int, other: int, junk: bytes) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    at, other = at % len(data), other % len(data)
    if how == "flip":
        data[at] ^= junk[0] or 1
    elif how == "zero":
        size = min(other, len(data) - at)
        data[at : at + size] = bytes(size)
    elif how == "copy":
        size = min(len(junk) * 20, len(data) - max(at, other))
        data[at : at + size] = data[other : other + size]
    elif how == "cut":
        del data[at:]
    else:
        data[at : at + len(junk)] = junk
    path.write_bytes(data)


@settings(max_examples=examples(60))
@given(golden=st.sampled_from(STORES), steps=changes)
def test_mutated_golden_stores_give_a_report(
    tmp_path_factory: pytest.TempPathFactory, golden: GoldenStore, steps: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    ignore = shutil.ignore_patterns("timerwheel", "timerlog")
    shutil.copytree(golden_store(golden.name), root, dirs_exist_ok=True, ignore=ignore)
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    for which, *step in steps:
        change(paths[which % len(paths)], *step)
    report = verify_store(root)
    assert report.to_json()["ok"] in (True, False)
    assert all(found.text and found.offset >= 0 for found in report.findings)
    shutil.rmtree(root)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                f"commitlog/{0:020d}",
                f"commitlog/{4_096:020d}",
                f"commitlog/{10**20 - 1}",
                f"consumequeue/T/0/{0:020d}",
                f"consumequeue/T/99999999999/{0:020d}",
                f"consumequeue/CURRENT/{0:020d}",
                "index/20261121014352237",
                "index/x",
                "config/topics.json",
                "config/delayOffset.json.bak",
                "checkpoint",
                "abort",
            ]
        ),
        st.binary(max_size=300) | st.integers(1, 4_096).map(bytes),
        min_size=1,
    )
)
def test_random_files_give_a_report(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("fuzz")
    (root / "config").mkdir()
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert verify_store(root).to_json()["figures"]["records"] == 0
    shutil.rmtree(root)
