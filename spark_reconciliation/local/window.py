"""Windows, as SQL texts."""

from __future__ import annotations

from spark_reconciliation.local.column import SqlColumn, column_of, columns_of


class LocalWindow:
    """Partition and order of a window function."""

    def __init__(self, partition: str, order: str = "") -> None:
        self._partition, self._order = partition, order

    @staticmethod
    def partitionBy(*columns: SqlColumn | str) -> LocalWindow:
        return LocalWindow(columns_of(columns))

    def orderBy(self, *columns: SqlColumn | str) -> LocalWindow:
        order = ", ".join(column_of(column).order for column in columns)
        return LocalWindow(self._partition, order)

    def __str__(self) -> str:
        order = f" ORDER BY {self._order}" if self._order else ""
        return f"PARTITION BY {self._partition}{order}"


Window = LocalWindow
