"""Spark session for audits, shared with the tests of the audit."""

from tests.spark_reconciliation.conftest import spark

__all__ = ["spark"]
