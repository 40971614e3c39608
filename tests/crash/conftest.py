"""Spark session for audits, shared with the tests of the audit."""

from tests.reconciliation.conftest import spark

__all__ = ["spark"]
