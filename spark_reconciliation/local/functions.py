"""Functions of `pyspark.sql.functions` that rules and jobs use, with the results of Spark.

DuckDB differs from Spark in some of them: a list of no rows is null, a shift to the left raises at
an overflow, and the logarithm of 0 is an error. In comparisons of structs, DuckDB's nulls are the
largest values, so the first field of a struct that is compared must not be null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spark_reconciliation.local.column import SqlColumn, column_of, columns_of, literal, quoted

if TYPE_CHECKING:
    from spark_reconciliation.local.frame import DataFrame

DATE_FORMATS: Final = {"yyyy-MM-dd": "%Y-%m-%d"}
REPEATED_MINUTES: Final = (60, 30)
"""Time by which clocks are set back at the end of summer time."""
Name = SqlColumn | str


def _call(function: str, *columns: Name) -> SqlColumn:
    return SqlColumn(f"{function}({columns_of(columns)})")


def _function(function: str) -> Callable[..., SqlColumn]:
    """Return a function with the arguments and the result of DuckDB's."""
    return lambda *columns: _call(function, *columns)


abs = _function("abs")
array_distinct = _function("list_distinct")
array_max = _function("list_max")
array_sort = _function("list_sort")
arrays_overlap = _function("list_has_any")
bit_xor = _function("bit_xor")
coalesce = _function("coalesce")
greatest = _function("greatest")
least = _function("least")
max = _function("max")
max_by = _function("arg_max_null")  # also if the value is null
min = _function("min")
min_by = _function("arg_min_null")
pow = _function("pow")
regr_slope = _function("regr_slope")
row_number = _function("row_number")
size = _function("len")
sort_array = _function("list_sort")
trim = _function("trim")
unix_millis = _function("epoch_ms")
xxhash64 = _function("hash")  # another hash function: its values are compared with each other only


def col(name: str) -> SqlColumn:
    return column_of(name)


def lit(value: object) -> SqlColumn:
    return SqlColumn(literal(value))


def broadcast(frame: DataFrame) -> DataFrame:
    return frame


def when(condition: SqlColumn, value: object) -> SqlColumn:
    return SqlColumn("").when(condition, value)


def count(column: Name) -> SqlColumn:
    return SqlColumn("count(*)" if isinstance(column, str) else f"count({column.sql})")


def countDistinct(column: Name) -> SqlColumn:
    return SqlColumn(f"count(DISTINCT {columns_of([column])})")


def count_if(condition: Name) -> SqlColumn:
    return SqlColumn(f"count(CASE WHEN {columns_of([condition])} THEN 1 END)")


def sum(column: Name) -> SqlColumn:
    return SqlColumn(f"sum({columns_of([column])})")  # `DataFrame.agg` narrows 128 bits


def first(column: Name, ignorenulls: bool = False) -> SqlColumn:
    text = columns_of([column])
    return SqlColumn(f"any_value({text})" if ignorenulls else f"first({text})")


def percentile_approx(column: Name, share: float) -> SqlColumn:
    return SqlColumn(f"quantile_disc({columns_of([column])}, {share})")


def collect_list(column: Name) -> SqlColumn:
    text = columns_of([column])
    return SqlColumn(f"coalesce(list({text}) FILTER ({text} IS NOT NULL), [])")


def collect_set(column: Name) -> SqlColumn:
    text = columns_of([column])
    return SqlColumn(f"coalesce(list(DISTINCT {text}) FILTER ({text} IS NOT NULL), [])")


# -- numbers --------------------------------------------------------------------------------------


def floor(column: Name) -> SqlColumn:
    return _call("floor", column).cast("bigint")


def ceil(column: Name) -> SqlColumn:
    return _call("ceil", column).cast("bigint")


def round(column: Name, digits: int = 0) -> SqlColumn:
    return SqlColumn(f"round({columns_of([column])}, {digits})")


def log2(column: Name) -> SqlColumn:
    text = columns_of([column])
    return SqlColumn(f"log2(CASE WHEN {text} > 0 THEN {text} END)")


def pmod(column: Name, divisor: SqlColumn) -> SqlColumn:
    text, by = columns_of([column]), divisor.sql
    return SqlColumn(f"((({text} % {by}) + {by}) % {by})")


def bitwise_not(column: Name) -> SqlColumn:
    return SqlColumn(f"(~{columns_of([column])})")


def shiftleft(column: Name, bits: int) -> SqlColumn:
    return SqlColumn(f"({columns_of([column])} * CAST({1 << bits} AS BIGINT))")


def shiftright(column: Name, bits: int) -> SqlColumn:
    return SqlColumn(f"({columns_of([column])} >> {bits})")


def shiftrightunsigned(column: Name, bits: int) -> SqlColumn:
    return SqlColumn(f"(({columns_of([column])} >> {bits}) & {(1 << 64 - bits) - 1})")


# -- arrays and structs ---------------------------------------------------------------------------


def struct(*columns: Name) -> SqlColumn:
    fields = (f"{quoted(c.name)} := {c.sql}" for c in map(column_of, columns))
    return SqlColumn(f"struct_pack({', '.join(fields)})")


def array(*columns: Name) -> SqlColumn:
    return SqlColumn(f"[{columns_of(columns)}]")


def array_position(column: Name, value: SqlColumn) -> SqlColumn:
    position = f"coalesce(list_position({columns_of([column])}, {value.sql}), 0)"
    return SqlColumn(f"CASE WHEN {value.sql} IS NOT NULL THEN {position} END")


def element_at(column: Name, position: SqlColumn | int) -> SqlColumn:
    return SqlColumn(f"{columns_of([column])}[{literal(position)}]")  # of a list, or of a map


try_element_at = element_at


def explode(column: Name) -> SqlColumn:
    return _call("unnest", column)


def explode_outer(column: Name) -> SqlColumn:
    text = columns_of([column])
    return SqlColumn(f"unnest(CASE WHEN len({text}) > 0 THEN {text} ELSE [NULL] END)")


def filter(column: Name, condition: Callable[[SqlColumn], SqlColumn]) -> SqlColumn:
    body = condition(SqlColumn("element")).sql
    return SqlColumn(f"list_filter({columns_of([column])}, lambda element: {body})")


def transform(column: Name, change: Callable[[SqlColumn], SqlColumn]) -> SqlColumn:
    body = change(SqlColumn("element")).sql
    return SqlColumn(f"list_transform({columns_of([column])}, lambda element: {body})")


def aggregate(
    column: Name, start: SqlColumn, merge: Callable[[SqlColumn, SqlColumn], SqlColumn]
) -> SqlColumn:
    body = merge(SqlColumn("total"), SqlColumn("element")).sql
    text = f"{columns_of([column])}, lambda total, element: {body}, {start.sql}"
    return SqlColumn(f"list_reduce({text})")


def zip_with(
    left: Name, right: Name, merge: Callable[[SqlColumn, SqlColumn], SqlColumn]
) -> SqlColumn:
    body = merge(SqlColumn("pair[1]"), SqlColumn("pair[2]")).sql
    return SqlColumn(f"list_transform(list_zip({columns_of([left, right])}), lambda pair: {body})")


# -- texts and times ------------------------------------------------------------------------------


def concat(*columns: Name) -> SqlColumn:
    texts = (column_of(column).cast("string").sql for column in columns)
    return SqlColumn(f"({' || '.join(texts)})")


def split(column: Name, separator: str) -> SqlColumn:
    return SqlColumn(f"string_split({columns_of([column])}, {literal(separator)})")


def timestamp_millis(column: Name) -> SqlColumn:
    return _call("epoch_ms", column)


def to_date(column: Name) -> SqlColumn:
    return SqlColumn(f"CAST({columns_of([column])} AS DATE)")


def date_format(column: Name, form: str) -> SqlColumn:
    return SqlColumn(f"strftime({columns_of([column])}, {literal(DATE_FORMATS[form])})")


def to_utc_timestamp(column: Name, zone: str) -> SqlColumn:
    """Return the instant of a local time, of an hour that occurs twice the first, as Spark does."""
    local, name = f"CAST({columns_of([column])} AS TIMESTAMP)", literal(zone)
    last = f"timezone({name}, {local})"
    earlier = (f"({last} - INTERVAL {minutes} MINUTE)" for minutes in REPEATED_MINUTES)
    cases = " ".join(
        f"WHEN timezone({name}, {instant}) = {local} THEN {instant}" for instant in earlier
    )
    return SqlColumn(f"CASE {cases} ELSE {last} END")
