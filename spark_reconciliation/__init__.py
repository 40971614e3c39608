"""Audits of stores, on Spark or on DuckDB. The extra `spark` installs the packages of both.

    import spark_reconciliation                       # registers the format with the active session
    spark.read.format("rocketmq-store").option("path", "/data/store").load()

`register(spark)` does the same for a later session. See
`spark_reconciliation.spark.data_source` for tables and options,
`spark_reconciliation.spark.table_source` for `format("duemq")`,
`spark_reconciliation.audit.verdicts` for the rules of the audit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_reconciliation.spark.requirements import require_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("rocketmq-store")` and `format("duemq")` with a session.

    Raises:
        UsageError: pyspark or pyarrow is not installed; the text has the command.
    """
    require_packages()
    from spark_reconciliation.spark.data_source import StoreSource
    from spark_reconciliation.spark.table_source import TableSource

    spark.dataSource.register(StoreSource)
    spark.dataSource.register(TableSource)


def _register_with_active_session() -> None:
    """Register with the session that runs at import; workers have none."""
    import sys

    if "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        register(session)


_register_with_active_session()
