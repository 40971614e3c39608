"""Files on a disk, and the Spark session of audits, shared with the tests of the audit."""

from tests.spark_reconciliation.conftest import spark
from tests.support.memory_files import tmp_path_factory

__all__ = ["spark", "tmp_path_factory"]
