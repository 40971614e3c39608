"""Delta log of an exported table: the names of its Parquet files, version by version.

    scheduled/day=2026-11-21/b0-s000001-0.parquet
    scheduled/_delta_log/00000000000000000000.json     protocol, schema, files of the first export
                         00000000000000000001.json     files that later exports added and removed

A version contains the differences between the files of the former versions and those on the disk,
so an export that was killed before its version is completed by the next one. Readers of Delta see
the files of an export at once. The files are those of an export without a Delta log.

Versions of other writers are skipped: they may add properties or checkpoints, but no rows, and they
must not merge files.

Source: PROTOCOL.md of delta-io/delta, reader version 1, writer version 2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

from duemq_common.directories import sync_directory
from duemq_common.errors import UsageError
from duemq_common.existence import exists
from spark_reconciliation.tables.schemas import DAY, TABLES

LOG: Final = "_delta_log"
ENGINE: Final = "duemq"
KINDS: Final = {"string": "string", "bigint": "long", "int": "integer"}
Action = dict[str, dict[str, object]]
Files = dict[str, tuple[int, int]]
"""Path of a file below its table -> its size in bytes, and time of its last change in ms."""


def has_delta_logs(out: Path) -> bool:
    """Return whether the tables of an output have Delta logs."""
    return any(exists(out / table / LOG) for table in TABLES)


def write_delta_logs(out: Path, now_ms: int) -> None:
    """Add a version to the log of each table whose files differ from those in its log.

    Raises:
        UsageError: The first versions of a log are missing, or another program has written one
            meanwhile.
        OSError: The disk is full, or cannot be written.
    """
    for table in TABLES:
        folder = out / table
        versions = _versions(folder / LOG)
        logged, present = _logged_files(versions), _present_files(folder)
        actions = list(_differences(logged, present, now_ms))
        if not versions:
            actions = [*_head(table, now_ms), *actions]
        if actions:
            info = {"timestamp": now_ms, "operation": "WRITE", "engineInfo": ENGINE}
            number = int(versions[-1].stem) + 1 if versions else 0
            _write(folder / LOG, number, [{"commitInfo": info}, *actions])


def _versions(log: Path) -> list[Path]:
    """Return the files of a log in order.

    Raises:
        UsageError: The first ones are missing.
    """
    versions = sorted(path for path in log.glob("*.json") if path.stem.isdigit())
    if versions and int(versions[0].stem):
        raise UsageError(
            f"{log} begins with version {int(versions[0].stem)}: another program has removed "
            f"former ones. Export into a new directory, or remove {log} to begin a new log"
        )
    return versions


def _logged_files(versions: Iterable[Path]) -> Files:
    """Return the files of a table by the versions of exports."""
    files: Files = {}
    for path in versions:
        actions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not any(one.get("commitInfo", {}).get("engineInfo") == ENGINE for one in actions):
            continue
        for action in actions:
            if added := action.get("add"):
                files[added["path"]] = (added["size"], added["modificationTime"])
            elif removed := action.get("remove"):
                files.pop(removed["path"], None)
    return files


def _present_files(folder: Path) -> Files:
    files: Files = {}
    for path in sorted(folder.glob(f"{DAY}=*/b*.parquet")):
        status = path.stat()
        name = path.relative_to(folder).as_posix()
        files[name] = (status.st_size, status.st_mtime_ns // 1_000_000)
    return files


def _differences(logged: Files, present: Files, now_ms: int) -> Iterator[Action]:
    for path in logged.keys() - present.keys():
        yield {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": True}}
    for path, facts in present.items():
        if logged.get(path) != facts:  # of a table of lateness, the file of an hour is replaced
            size, changed_ms = facts
            day = path.partition("/")[0].removeprefix(f"{DAY}=")
            yield {
                "add": {
                    "path": path,
                    "partitionValues": {DAY: day},
                    "size": size,
                    "modificationTime": changed_ms,
                    "dataChange": True,
                }
            }


def _head(table: str, now_ms: int) -> Iterator[Action]:
    fields = [(column.name, KINDS[column.kind]) for column in TABLES[table].columns]
    schema = {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in [*fields, (DAY, "date")]
        ],
    }
    yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    yield {
        "metaData": {
            "id": str(uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [DAY],
            "configuration": {},
            "createdTime": now_ms,
        }
    }


def _write(log: Path, number: int, actions: Iterable[Action]) -> None:
    """Write a version; a reader finds it whole, or not at all."""
    log.mkdir(parents=True, exist_ok=True)
    target, unfinished = log / f"{number:020d}.json", log / f".{number}.unfinished"
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(action) + "\n" for action in actions)
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, target)
    except FileExistsError as error:
        raise UsageError(f"another program has written {target}: run the export again") from error
    finally:
        unfinished.unlink(missing_ok=True)
    sync_directory(log)
    sync_directory(log.parent)
