"""DataFrames whose operations are SQL queries, executed together by DuckDB.

A frame has the text of one SELECT and its parents. `collect` runs these texts as the common table
expressions of one query. Tables at the leaves are Arrow tables, loaded when a query needs them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import finalize

import pyarrow as pa

from spark_reconciliation.local.column import SqlColumn, column_of, columns_of, quoted
from spark_reconciliation.local.parquet_folders import ParquetFolders
from spark_reconciliation.local.streams import Batches, Change, StreamedRows, split
from spark_reconciliation.local.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

ARROW: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "map<bigint, bigint>": pa.map_(pa.int64(), pa.int64()),
}
JOINS: Final = {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN"}
WITHOUT_RIGHT: Final = {"left_anti": "ANTI JOIN", "left_semi": "SEMI JOIN"}
SETTINGS: Final = {
    "TimeZone": "UTC",
    "default_null_order": "nulls_first_on_asc_last_on_desc",  # as in Spark
    "disabled_optimizers": "join_order,build_side_probe_side",  # these take a stream for one row
    "memory_limit": "2GB",  # more is in temporary files; Arrow tables do not count
    "enable_progress_bar": "false",  # printed to standard output in notebooks and `python -c`
}
GROUP: Final = "group_key"
Load = Callable[[], pa.Table]
Stream = Callable[[], Batches]
_numbers = count()


class LocalRow(dict[str, object]):
    """Row of a result: values by name, or by position."""

    def __getitem__(self, key: str | int) -> object:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def asDict(self) -> dict[str, object]:
        return dict(self)


class DataFrame:
    """Query, or a table.

    Args:
        names: Names of the columns.
        body: SELECT without its order, of `parents`.
        load: Returns the rows of a table; the body is not used then.
        stream: Yields the rows of a table that is too large for memory, which DuckDB knows by the
            name in `body`.
    """

    def __init__(
        self,
        session: LocalSession,
        names: Sequence[str],
        body: str = "",
        parents: Sequence[DataFrame] = (),
        *,
        load: Load | None = None,
        stream: Stream | None = None,
    ) -> None:
        self.sparkSession, self.columns = session, list(names)
        self._name, self._load, self._stream = f"frame_{next(_numbers)}", load, stream
        self._body, self._parents = body, tuple(parents)
        self._order = ""  # end of the SELECT
        self._limit: int | None = None
        self._table: pa.Table | None = None
        self._partitions: tuple[str, int] | None = None
        self._is_union = False

    # -- columns ----------------------------------------------------------------------------------

    def select(self, *columns: SqlColumn | str) -> DataFrame:
        return self._projected([column_of(column) for column in columns])

    def _projected(self, columns: Sequence[SqlColumn]) -> DataFrame:
        names = [column.name for column in columns]
        text = ", ".join(f"{column.sql} AS {quoted(column.name)}" for column in columns)
        frame = DataFrame(self.sparkSession, names, f"SELECT {text} FROM {self._name}", [self])
        if self._order and self._limit is None:  # the order of the result, not of a limit
            frame._order = self._order
        return frame

    def withColumns(self, columns: dict[str, SqlColumn]) -> DataFrame:
        own = [columns[name].alias(name) if name in columns else name for name in self.columns]
        more = [column.alias(name) for name, column in columns.items() if name not in self.columns]
        return self.select(*own, *more)

    def withColumn(self, name: str, column: SqlColumn) -> DataFrame:
        return self.withColumns({name: column})

    def drop(self, *names: str) -> DataFrame:
        return self.select(*(name for name in self.columns if name not in names))

    def __getitem__(self, name: str) -> SqlColumn:
        return column_of(name)

    # -- rows -------------------------------------------------------------------------------------

    def _query(self, head: str, tail: str = "") -> DataFrame:
        body = f"SELECT {head} FROM {self._name}{tail}"
        return DataFrame(self.sparkSession, self.columns, body, [self])

    def where(self, condition: SqlColumn | str) -> DataFrame:
        text = condition if isinstance(condition, str) else condition.sql
        return self._query("*", f" WHERE {text}")

    def distinct(self) -> DataFrame:
        return self._query("DISTINCT *")

    def dropDuplicates(self, names: Sequence[str]) -> DataFrame:
        return self._query(f"DISTINCT ON ({columns_of(names)}) *")

    def orderBy(self, *columns: SqlColumn | str) -> DataFrame:
        frame = self._query("*")
        frame._order = ", ".join(column_of(column).order for column in columns)
        return frame

    def limit(self, rows: int) -> DataFrame:
        frame = DataFrame(self.sparkSession, self.columns, self._body, self._parents)
        if self._load is not None or self._stream is not None or self._limit is not None:
            frame = self._query("*")
        frame._order, frame._limit = self._order, rows
        return frame

    def repartition(self, number: int, column: str = "") -> DataFrame:
        """Return the rows for a `mapInArrow` that is called for each value of a column.

        Args:
            number: Number of the values, from 0.
            column: Column of integers; empty: any partitions will do.
        """
        frame = self._query("*")
        frame._partitions = (column, number) if column else None
        return frame

    # -- several frames ---------------------------------------------------------------------------

    def join(self, other: DataFrame, on: str | Sequence[str], how: str = "inner") -> DataFrame:
        keys = [on] if isinstance(on, str) else list(on)
        using = f"{other._name} USING ({columns_of(keys)})"
        if how in WITHOUT_RIGHT:
            body = f"SELECT * FROM {self._name} {WITHOUT_RIGHT[how]} {using}"
            return DataFrame(self.sparkSession, self.columns, body, [self, other])
        left = [name for name in self.columns if name not in keys]
        right = [name for name in other.columns if name not in keys]
        texts = [quoted(name) for name in keys]
        texts += [f"{self._name}.{quoted(name)}" for name in left]
        texts += [f"{other._name}.{quoted(name)}" for name in right]
        body = f"SELECT {', '.join(texts)} FROM {self._name} {JOINS[how]} {using}"
        return DataFrame(self.sparkSession, [*keys, *left, *right], body, [self, other])

    def crossJoin(self, other: DataFrame) -> DataFrame:
        body = f"SELECT * FROM {self._name} CROSS JOIN {other._name}"
        return DataFrame(self.sparkSession, self.columns + other.columns, body, [self, other])

    def unionByName(self, other: DataFrame, allowMissingColumns: bool = False) -> DataFrame:
        names = [*self.columns, *(name for name in other.columns if name not in self.columns)]
        assert allowMissingColumns or len(names) == len(self.columns) == len(other.columns)
        halves = [f"SELECT {_filled(frame, names)} FROM {frame._name}" for frame in (self, other)]
        union = DataFrame(self.sparkSession, names, " UNION ALL ".join(halves), [self, other])
        union._is_union = self.columns == other.columns
        return union

    # -- groups -----------------------------------------------------------------------------------

    def groupBy(self, *columns: SqlColumn | str) -> GroupedData:
        return GroupedData(self, [column_of(column) for column in columns])

    def agg(self, *columns: SqlColumn) -> DataFrame:
        return GroupedData(self, []).agg(*columns)

    def mapInArrow(self, change: Change, schema: str | pa.Schema) -> DataFrame:
        fields = parse_schema(schema) if isinstance(schema, str) else schema

        if self._partitions is not None:
            (source,), (column, number) = self._parents, self._partitions
            threads = self.sparkSession.threads

            def changed() -> Batches:
                return split(source._batches(), column, number, change, threads)

            frame = self.sparkSession.read(fields, changed, keep=False)
            frame._parents = (source,)  # whose tables are loaded before DuckDB reads the rows
            return frame

        def load() -> pa.Table:
            return pa.Table.from_batches(list(change(self._batches())), fields)

        return DataFrame(self.sparkSession, fields.names, load=load)

    def _batches(self) -> Batches:
        """Yield the rows; those of streams, and of unions of these, are not kept in memory."""
        if self._stream is not None and self._load is None:
            yield from self._stream()
        elif self._is_union and self._load is None:
            for parent in self._parents:
                yield from parent._batches()
        else:
            yield from self.toArrow().to_batches()

    @property
    def schema(self) -> pa.Schema:
        return self.limit(0).toArrow().schema

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and Spark's types of the columns."""
        return [(field.name, spark_type(field.type)) for field in self.schema]

    # -- results ----------------------------------------------------------------------------------

    def persist(self) -> DataFrame:
        """Keep the rows once they are computed."""
        if self._load is None:
            query = DataFrame(self.sparkSession, self.columns, self._body, self._parents)
            query._order, query._limit = self._order, self._limit
            self._load = query.toArrow
        return self

    @property
    def write(self) -> ParquetFolders:
        return ParquetFolders(self.toArrow)

    def unpersist(self) -> DataFrame:
        return self

    def toArrow(self) -> pa.Table:
        if self._load is not None:
            return self._rows()
        return self._relation().to_arrow_table()

    def collect(self) -> list[LocalRow]:
        if self._load is not None:
            return [LocalRow(row) for row in self._rows().to_pylist()]
        relation = self._relation()
        return [LocalRow(zip(self.columns, row, strict=True)) for row in relation.fetchall()]

    def toLocalIterator(self) -> Iterator[LocalRow]:
        return iter(self.collect())

    def count(self) -> int:
        if self._load is not None:
            return int(self._rows().num_rows)
        return int(self._query("count(*)")._relation().fetchall()[0][0])

    def isEmpty(self) -> bool:
        return not self.limit(1).count()

    def _rows(self) -> pa.Table:
        """Return the rows of a table; loads and registers them at the first call."""
        if self._table is None:
            assert self._load is not None
            self._table = self._load()
            self.sparkSession.register(self._name, self._table)
            finalize(self, self.sparkSession.unregister, self._name).atexit = False
        return self._table

    def _relation(self) -> DuckDBPyRelation:
        """Return DuckDB's relation of this query."""
        texts: dict[str, str] = {}
        for parent in self._parents:
            parent._collect_texts(texts)
        common = ", ".join(f"{name} AS ({text})" for name, text in texts.items())
        text = f"WITH {common} {self._sql}" if common else self._sql
        return self.sparkSession.relation(text)

    def _collect_texts(self, texts: dict[str, str]) -> None:
        """Add the queries that this frame needs and its own, in order; load its tables."""
        if self._load is not None:
            self._rows()
        elif self._name not in texts:
            for parent in self._parents:
                parent._collect_texts(texts)
            texts[self._name] = self._sql

    @property
    def _sql(self) -> str:
        order = f" ORDER BY {self._order}" if self._order else ""
        return self._body + order + ("" if self._limit is None else f" LIMIT {self._limit}")


class GroupedData:
    """Groups of rows."""

    def __init__(self, frame: DataFrame, keys: Sequence[SqlColumn]) -> None:
        self._frame, self._keys = frame, keys

    def agg(self, *columns: SqlColumn) -> DataFrame:
        grouped = self._frame._projected([*self._keys, *columns])
        if self._keys:
            grouped._body += " GROUP BY " + ", ".join(map(str, range(1, len(self._keys) + 1)))
        grouped._order = ""
        return grouped

    def count(self) -> DataFrame:
        return self.agg(SqlColumn("count(*)", "count"))

    def applyInArrow(self, change: Callable[[pa.Table], pa.Table], schema: str) -> DataFrame:
        """Return the results of groups of one key."""
        frame, fields, (key,) = self._frame, parse_schema(schema), self._keys

        def load() -> pa.Table:
            rows = frame.withColumn(GROUP, key)
            values = [row[GROUP] for row in rows.select(GROUP).distinct().collect()]
            groups = (rows.where(column_of(GROUP).eqNullSafe(value)) for value in values)
            results = [change(group.drop(GROUP).toArrow()) for group in groups]
            return pa.concat_tables([fields.empty_table(), *results])

        return DataFrame(frame.sparkSession, fields.names, load=load)


def _filled(frame: DataFrame, names: Sequence[str]) -> str:
    """Return columns in the order of `names`, null where the frame has none."""
    return ", ".join(
        quoted(name) if name in frame.columns else f"NULL AS {quoted(name)}" for name in names
    )


def spark_type(kind: pa.DataType) -> str:
    """Return Spark's name of a type; that of Arrow for types without a meaning here."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_integer(kind):
        return "bigint"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return "string" if pa.types.is_large_string(kind) else str(kind)


def parse_schema(text: str) -> pa.Schema:
    """Return the schema of a text such as `store string, promised map<bigint, bigint>`."""
    fields = (field.partition(" ") for field in re.split(r", (?![^<]*>)", text))
    return pa.schema([(name, ARROW[kind]) for name, _, kind in fields])


class LocalSession:
    """Session with the methods of Spark's that rules and jobs use."""

    def __init__(self, *, cores: int = 0) -> None:
        import duckdb

        self.threads = cores or len(os.sched_getaffinity(0))
        self._open = True
        self._connection = duckdb.connect(config={"threads": self.threads})
        for name, value in SETTINGS.items():
            self._connection.execute(f"SET {name} = '{value}'")
        self._folder = TemporaryFolder()
        self._connection.execute("SET temp_directory = ?", [str(self._folder.path)])

    def createDataFrame(self, rows: Sequence[Sequence[object]], schema: str) -> DataFrame:
        """Return rows as a frame."""
        fields = parse_schema(schema)
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
        return self.of_table(pa.Table.from_arrays(arrays, schema=fields))

    def of_table(self, table: pa.Table) -> DataFrame:
        """Return the rows of a table."""
        return DataFrame(self, table.column_names, load=lambda: table)

    def read(self, schema: pa.Schema, batches: Stream, *, keep: bool) -> DataFrame:
        """Return a table that is read when a query needs it.

        Args:
            keep: Whether its rows stay in memory; otherwise each query reads them again.
        """
        if keep:
            return DataFrame(
                self, schema.names, load=lambda: pa.Table.from_batches(list(batches()), schema)
            )
        name = f"stream_{next(_numbers)}"
        self.register(name, StreamedRows(schema, batches))
        frame = DataFrame(self, schema.names, f"SELECT * FROM {name}", stream=batches)
        finalize(frame, self.unregister, name).atexit = False
        return frame

    def relation(self, text: str) -> DuckDBPyRelation:
        """Return DuckDB's relation of a query; sums of integers have 64 bits, as in Spark."""
        relation = self._connection.sql(text)
        kinds = [str(kind) for kind in relation.types]
        if "HUGEINT" not in kinds:
            return relation
        columns = (
            f'CAST("{name}" AS BIGINT) AS "{name}"' if kind == "HUGEINT" else f'"{name}"'
            for name, kind in zip(relation.columns, kinds, strict=True)
        )
        return relation.project(", ".join(columns))

    def register(self, name: str, table: pa.Table | StreamedRows) -> None:
        """Let queries find a table by its name."""
        self._connection.register(name, table)

    def unregister(self, name: str) -> None:
        """Release a table."""
        if self._open:
            self._connection.unregister(name)

    def stop(self) -> None:
        """Remove the temporary files, and close the database, which may wait for a query."""
        self._open = False
        self._folder.remove()
        self._connection.close()
