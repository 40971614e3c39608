"""Saved states: damage at any byte, other versions, other directories, interrupted writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.incremental import audit_state
from spark_reconciliation.incremental.audit_state import (
    AuditSettings,
    AuditState,
    FullAuditNeeded,
    check_folder,
    next_number,
    read_state,
    write_state,
)
from spark_reconciliation.incremental.closed_messages import ClosedFiles
from spark_reconciliation.scan.record_mark import RecordMark
from spark_reconciliation.scan.store_part import KnownQueue

STEP = 7  # every 7th byte is damaged


def save(folder: Path, number: int = 1) -> AuditState:
    folder.mkdir(exist_ok=True)
    files = ClosedFiles(folder, number)
    files.pending.add(*(np.arange(99) + n for n in range(3)))
    state = AuditState(
        number=number,
        store="/data/store",
        settings=AuditSettings(2_000, (1_000, 5_000), trust_clock=False),
        log_min=7,
        end=(1 << 40) + number,
        last=RecordMark(9, "[9]"),
        checked=True,
        delays={1: (1_000,), 2: ()},
        queues=(KnownQueue("T", 2, -5, 7, 8, 6),),
        inspected=(4, 5),
        timer_pos=52,
        read_ms=1_000,
        files=files.close(),
    )
    write_state(folder, state)
    return state


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert save(folder) == read_state(folder)
    later = save(folder, next_number(folder))
    assert later.number == 2
    assert read_state(folder) == later
    names = {path.name for path in folder.iterdir()}
    assert names == {"state.json", *later.files}, "the files of the former state are removed"


def test_damage_is_noticed_at_every_byte(tmp_path: Path) -> None:
    save(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        for position in [*range(0, len(data), STEP), len(data) - 1]:
            changed = bytearray(data)
            changed[position] ^= 0x10
            path.write_bytes(changed)
            with pytest.raises((FullAuditNeeded, UsageError)):
                read_state(tmp_path)
        path.write_bytes(data[:-1])
        with pytest.raises((FullAuditNeeded, UsageError)):
            read_state(tmp_path)
        path.write_bytes(data)
    assert read_state(tmp_path).number == 1


def test_a_missing_file(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "delivered-1.parquet").unlink()
    with pytest.raises(FullAuditNeeded, match=r"delivered-1\.parquet is missing or damaged"):
        read_state(tmp_path)
    with pytest.raises(FullAuditNeeded, match="there is no state in"):
        read_state(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"version": 99}, FullAuditNeeded, r"of DueMQ 1\.0\.0, version 99; this is 1\.0\.0"),
        ({"product": "0.9"}, FullAuditNeeded, r"of DueMQ 0\.9, version 3; this is"),
        ({"format": "duemq-tables"}, UsageError, "is not the state of an audit"),
        ({"state": {}}, FullAuditNeeded, "is damaged"),
    ],
)
def test_other_versions(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], text: str
) -> None:
    save(tmp_path)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(error, match=text):
        read_state(tmp_path)


@pytest.mark.parametrize("name", ["notes.txt", "pending-x.parquet", "table-1.parquet", "a-1"])
def test_a_directory_with_other_files_is_refused(tmp_path: Path, name: str) -> None:
    check_folder(tmp_path / "new")
    check_folder(tmp_path)
    save(tmp_path)
    check_folder(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"is not the state of an audit: it contains {name}"):
        check_folder(tmp_path)
    with pytest.raises(UsageError, match="is a file: name a directory"):
        check_folder(tmp_path / name)


def test_a_killed_write_leaves_the_former_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = save(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for target, name in ((os, "fsync"), (os, "replace"), (audit_state, "replace_file")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, killed)
            with pytest.raises(KeyboardInterrupt):
                save(tmp_path, next_number(tmp_path))
        assert read_state(tmp_path) == former
        check_folder(tmp_path)
    later = save(tmp_path, next_number(tmp_path))
    assert read_state(tmp_path) == later
    assert len(list(tmp_path.glob("*.parquet"))) == len(later.files), "remains are removed"
