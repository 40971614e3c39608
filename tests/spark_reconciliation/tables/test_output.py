"""The names of exported files are on the disk before the state that depends on them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_reconciliation.tables import output
from spark_reconciliation.tables.output import StepFiles, publish
from spark_reconciliation.tables.schemas import TABLES

DAY = "day=1970-01-01"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    paths = list[Path]()
    monkeypatch.setattr(output, "sync_directory", paths.append)
    return paths


def test_each_folder_with_a_new_name_is_synced(tmp_path: Path, synced: list[Path]) -> None:
    files = StepFiles(tmp_path, 0, 1)
    rows = pa.Table.from_pylist([{TABLES["pops"].time: 5}], TABLES["pops"].arrow)
    files.add("pops", rows.to_batches()[0])
    files.close()
    staging = output.staging_of(tmp_path)
    parents = {staging.parent, staging, staging / "pops", staging / "pops" / DAY}
    assert set(synced) == parents
    assert synced.index(staging / "pops" / DAY) < synced.index(staging)
    synced.clear()
    publish(tmp_path, 0, ())
    assert set(synced) == {tmp_path, tmp_path / "pops", tmp_path / "pops" / DAY}


def test_a_step_without_rows_has_no_folders(tmp_path: Path, synced: list[Path]) -> None:
    StepFiles(tmp_path, 0, 1).close()
    publish(tmp_path, 0, ())
    assert synced == []
