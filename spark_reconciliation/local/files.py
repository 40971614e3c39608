"""Rows of files: Parquet, CSV, JSON Lines. Values of the last two are text, as in Spark's CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Final

import pyarrow as pa

from duemq_common.errors import UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from pyarrow.parquet import FileMetaData

PARQUET: Final = "parquet"
CSV: Final = "csv"
JSON_LINES: Final = "json"
TABLE_LOGS: Final = ("_delta_log/", ".hoodie/")
INSTANT: Final = pa.timestamp("us", "UTC")


def file_bytes(location: str) -> int:
    """Return the bytes of a file, or of the files of a directory.

    Raises:
        OSError: There is no such file.
        UsageError: The directory has files of former versions, too.
    """
    system, _, names = _files(location)
    return sum(int(system.size(name) or 0) for name in names)


def read_files(
    location: str, kind: str, choose: Callable[[Sequence[str]], Sequence[str]] = list
) -> pa.Table:
    """Return columns of the rows of a file, or of the files of a directory.

    Args:
        kind: PARQUET, CSV or JSON_LINES; of the last two, compressed ones as well.
        choose: Returns the names of the columns to return; called with all names.
    Raises:
        OSError: A file cannot be read.
        UsageError: A file has another format, or the directory has files of former versions, too.
    """
    system, folder, names = _files(location)
    try:
        if kind == PARQUET:
            return _parquet(system, folder, names, choose)
        tables = []
        for name in names:
            with system.open(name, "rb", compression="infer") as file:
                tables.append(_csv(file) if kind == CSV else _json_lines(file))
        rows = pa.concat_tables(tables, promote_options="default")
        return rows.select(choose(rows.column_names))
    except (pa.ArrowInvalid, ValueError) as error:
        raise UsageError(f"{location} is not {kind}: {error}") from error


def _files(location: str) -> tuple[AbstractFileSystem, str, list[str]]:
    import fsspec

    system, path = fsspec.core.url_to_fs(location)
    present = sorted(system.find(path))
    if any(name.removeprefix(path).lstrip("/").startswith(TABLE_LOGS) for name in present):
        text = "its directory also has the files of former versions: give a copy of the newest one"
        raise UsageError(f"{location} is a table of Delta or Hudi, and {text}")
    names = [name for name in present if not _is_hidden(name, path)]
    if not names:
        raise FileNotFoundError(f"{location}: there is no such file")
    return system, path, names


def _is_hidden(name: str, below: str) -> bool:
    """Return whether Spark ignores a file below a directory, such as _SUCCESS."""
    parts = name.removeprefix(below).split("/")
    return any(part.startswith(("_", ".")) and "=" not in part for part in parts)


def _parquet(
    system: AbstractFileSystem,
    folder: str,
    names: list[str],
    choose: Callable[[Sequence[str]], Sequence[str]],
) -> pa.Table:
    from pyarrow import dataset

    source = dataset.dataset(
        names,
        filesystem=system,
        format=dataset.ParquetFileFormat(coerce_int96_timestamp_unit="us"),
        partitioning="hive",
        partition_base_dir=folder,
    )
    rows = source.to_table(columns=list(choose(source.schema.names)))
    instants = _int96_columns(next(source.get_fragments()).metadata)
    fields = [
        field.with_type(INSTANT if field.name in instants else _plain(field.type))
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields), safe=False)


def _int96_columns(metadata: FileMetaData) -> set[str]:
    """Return the columns of INT96, which Spark writes by default: instants, unlike those of INT64
    that are not adjusted to UTC.
    """
    columns = map(metadata.schema.column, range(metadata.num_columns))
    return {column.path for column in columns if column.physical_type == "INT96"}


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that DuckDB and Spark have for one of Parquet."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_float16(kind):
        return pa.float32()
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _csv(file: IO[bytes]) -> pa.Table:
    from pyarrow import csv

    names = csv.open_csv(file).schema.names
    file.seek(0)
    options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    return csv.read_csv(file, convert_options=options)


def _json_lines(file: IO[bytes]) -> pa.Table:
    rows = list(_objects(file))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names]
    return pa.Table.from_arrays(columns, list(names))


def _objects(file: IO[bytes]) -> Iterator[dict[str, object]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                text = f"{error.msg} at column {error.colno}"
                raise ValueError(f"line {number} is not an object: {text}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not an object")
            yield row


def _text(value: object) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value)
