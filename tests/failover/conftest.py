"""Spark session for audits, shared with the tests of the audit."""

from tests.spark_reconciliation.conftest import on_spark, spark

__all__ = ["on_spark", "spark"]
