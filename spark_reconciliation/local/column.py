"""Column expressions as SQL texts of DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

TYPES: Final = {
    "string": "VARCHAR",
    "binary": "BLOB",
    "bigint": "BIGINT",
    "int": "INTEGER",
    "boolean": "BOOLEAN",
    "double": "DOUBLE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
"""Types of Spark that occur in casts."""


Operator = Callable[["SqlColumn", object], "SqlColumn"]


def _binary(operator: str) -> Operator:
    """Return an operator whose left side is the column."""
    return lambda self, other: SqlColumn(f"({self.sql} {operator} {literal(other)})")


def _reflected(operator: str) -> Operator:
    """Return an operator whose right side is the column."""
    return lambda self, other: SqlColumn(f"({literal(other)} {operator} {self.sql})")


class SqlColumn:
    """Expression; `name` is that of its column in a result.

    The operators build new expressions, as Spark's do. `cases` are the branches of a CASE to which
    `when` and `otherwise` add.
    """

    __hash__ = None  # type: ignore[assignment]  # == builds an expression

    def __init__(self, sql: str, name: str = "", cases: str = "", order: str = "") -> None:
        self.sql, self.name, self.cases, self.order = sql, name or sql, cases, order or sql

    def alias(self, name: str) -> SqlColumn:
        return SqlColumn(self.sql, name)

    def cast(self, kind: str) -> SqlColumn:
        return SqlColumn(f"CAST({self.sql} AS {TYPES[kind]})", self.name)

    def try_cast(self, kind: str) -> SqlColumn:
        return SqlColumn(f"TRY_CAST({self.sql} AS {TYPES[kind]})", self.name)

    __eq__ = _binary("=")  # type: ignore[assignment]
    __ne__ = _binary("<>")  # type: ignore[assignment]
    __lt__ = _binary("<")
    __le__ = _binary("<=")
    __gt__ = _binary(">")
    __ge__ = _binary(">=")
    __add__ = _binary("+")
    __radd__ = _reflected("+")
    __sub__ = _binary("-")
    __rsub__ = _reflected("-")
    __mul__ = _binary("*")
    __rmul__ = _reflected("*")
    __truediv__ = _binary("/")
    __and__ = _binary("AND")
    __or__ = _binary("OR")
    bitwiseAND = _binary("&")
    bitwiseOR = _binary("|")
    eqNullSafe = _binary("IS NOT DISTINCT FROM")

    def __neg__(self) -> SqlColumn:
        return SqlColumn(f"(-{self.sql})")

    def __invert__(self) -> SqlColumn:
        return SqlColumn(f"(NOT {self.sql})")

    def __getitem__(self, field: str) -> SqlColumn:
        """Return the field of a struct."""
        return SqlColumn(f"{self.sql}.{quoted(field)}", field)

    def __bool__(self) -> bool:
        raise ValueError("an expression has no truth value: use & and |")

    def bitwiseXOR(self, other: object) -> SqlColumn:
        return SqlColumn(f"xor({self.sql}, {literal(other)})")

    def isNull(self) -> SqlColumn:
        return SqlColumn(f"({self.sql} IS NULL)")

    def isNotNull(self) -> SqlColumn:
        return SqlColumn(f"({self.sql} IS NOT NULL)")

    def isin(self, *values: object) -> SqlColumn:
        return SqlColumn(
            f"({self.sql} IN ({', '.join(map(literal, values))}))" if values else "FALSE"
        )

    def between(self, low: object, high: object) -> SqlColumn:
        return SqlColumn(f"({self.sql} BETWEEN {literal(low)} AND {literal(high)})")

    def rlike(self, pattern: str) -> SqlColumn:
        return SqlColumn(f"regexp_matches({self.sql}, {literal(pattern)})")

    def desc(self) -> SqlColumn:
        return SqlColumn(self.sql, self.name, order=f"{self.sql} DESC")

    def when(self, condition: SqlColumn, value: object) -> SqlColumn:
        cases = f"{self.cases} WHEN {condition.sql} THEN {literal(value)}"
        return SqlColumn(f"CASE{cases} END", cases=cases)

    def otherwise(self, value: object) -> SqlColumn:
        return SqlColumn(f"CASE{self.cases} ELSE {literal(value)} END")

    def over(self, window: object) -> SqlColumn:
        return SqlColumn(f"{self.sql} OVER ({window})", self.name)


def quoted(name: str) -> str:
    """Return a name in quotes; dots separate the fields of structs, but not between backticks."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in _parts(name))


def _parts(name: str) -> list[str]:
    is_whole = len(name) > 1 and name[0] == name[-1] == "`"
    return [name[1:-1].replace("``", "`")] if is_whole else name.split(".")


def literal(value: object) -> str:
    """Return a value, or an expression, as SQL."""
    if isinstance(value, SqlColumn):
        return value.sql
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"({int(value)})" if value < 0 else str(int(value))
    if isinstance(value, float):
        return f"CAST({value!r} AS DOUBLE)"
    assert isinstance(value, str), value
    return "'" + value.replace("'", "''") + "'"


def column_of(value: SqlColumn | str) -> SqlColumn:
    """Return a column, or that of a name."""
    return value if isinstance(value, SqlColumn) else SqlColumn(quoted(value), _parts(value)[-1])


def columns_of(values: Iterable[SqlColumn | str]) -> str:
    """Return columns as SQL, separated by commas."""
    return ", ".join(column_of(value).sql for value in values)
