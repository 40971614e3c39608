"""Engine of the queries: Spark, or DuckDB in this process (`local`).

Rules and jobs are written once, with the DataFrame API of Spark. They take their functions from `F`
and `Window` here, which belong to the engine in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Window as Window
    from pyspark.sql import functions as functions

    F = functions

SPARK: Final = "pyspark.sql"
LOCAL: Final = "spark_reconciliation.local"
_package: ContextVar[str] = ContextVar("package", default=SPARK)


class _Functions:
    """Functions of the engine in use."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(f"{_package.get()}.functions"), name)


class _Window:
    """Class `Window` of the engine in use."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(f"{_package.get()}.window").Window, name)


if not TYPE_CHECKING:
    F, Window = _Functions(), _Window()


@contextmanager
def use_engine_of(session: object) -> Iterator[None]:
    """Let `F` and `Window` belong to the engine of a session while the block runs."""
    module = type(session).__module__
    token = _package.set(LOCAL if module.startswith(LOCAL) else SPARK)
    try:
        yield
    finally:
        _package.reset(token)
