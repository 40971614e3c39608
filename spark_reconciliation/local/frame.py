"""DataFrames whose operations are SQL queries, executed together by DuckDB.

A frame has the text of one SELECT and its parents. `collect` runs these texts as the common table
expressions of one query. Tables at the leaves are Arrow tables, loaded when a query needs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import finalize

import pyarrow as pa

from spark_reconciliation.local.column import SqlColumn, column_of, columns_of, quoted
from spark_reconciliation.local.parquet_folders import ParquetFolders

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
}
GROUP: Final = "group_key"
Load = Callable[[], pa.Table]
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
    """

    def __init__(
        self,
        session: LocalSession,
        names: Sequence[str],
        body: str = "",
        parents: Sequence[DataFrame] = (),
        *,
        load: Load | None = None,
    ) -> None:
        self.sparkSession, self.columns = session, list(names)
        self._name, self._load = f"frame_{next(_numbers)}", load
        self._body, self._parents = body, tuple(parents)
        self._order = ""  # end of the SELECT
        self._limit: int | None = None
        self._table: pa.Table | None = None

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
        if self._load is not None or self._limit is not None:
            frame = self._query("*")
        frame._order, frame._limit = self._order, rows
        return frame

    def repartition(self, number: int, *columns: str) -> DataFrame:
        return self

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
        return DataFrame(self.sparkSession, names, " UNION ALL ".join(halves), [self, other])

    # -- groups -----------------------------------------------------------------------------------

    def groupBy(self, *columns: SqlColumn | str) -> GroupedData:
        return GroupedData(self, [column_of(column) for column in columns])

    def agg(self, *columns: SqlColumn) -> DataFrame:
        return GroupedData(self, []).agg(*columns)

    def mapInArrow(
        self,
        change: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        schema: str | pa.Schema,
    ) -> DataFrame:
        fields = parse_schema(schema) if isinstance(schema, str) else schema

        def load() -> pa.Table:
            return pa.Table.from_batches(list(change(iter(self.toArrow().to_batches()))), fields)

        return DataFrame(self.sparkSession, fields.names, load=load)

    @property
    def schema(self) -> pa.Schema:
        return self.limit(0).toArrow().schema

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


def parse_schema(text: str) -> pa.Schema:
    """Return the schema of a text such as `store string, promised map<bigint, bigint>`."""
    fields = (field.partition(" ") for field in re.split(r", (?![^<]*>)", text))
    return pa.schema([(name, ARROW[kind]) for name, _, kind in fields])


class LocalSession:
    """Session with the methods of Spark's that rules and jobs use."""

    def __init__(self, *, cores: int = 0) -> None:
        import duckdb

        self._open = True
        self._connection = duckdb.connect(config={"threads": cores} if cores else {})
        for name, value in SETTINGS.items():
            self._connection.execute(f"SET {name} = '{value}'")

    def createDataFrame(self, rows: Sequence[Sequence[object]], schema: str) -> DataFrame:
        """Return rows as a frame."""
        fields = parse_schema(schema)
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=fields)
        return DataFrame(self, fields.names, load=lambda: table)

    def read(self, schema: pa.Schema, load: Load) -> DataFrame:
        """Return a table that is loaded when a query needs it."""
        return DataFrame(self, schema.names, load=load)

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

    def register(self, name: str, table: pa.Table) -> None:
        """Let queries find a table by its name."""
        self._connection.register(name, table)

    def unregister(self, name: str) -> None:
        """Release a table."""
        if self._open:
            self._connection.unregister(name)

    def stop(self) -> None:
        """Close the database."""
        self._open = False
        self._connection.close()
