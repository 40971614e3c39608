"""The Spark session of the audits is that of their own tests."""

from tests.reconciliation.conftest import spark

__all__ = ["spark"]
